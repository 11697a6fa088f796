"""
One worker process of the shop: ``python -m sqlalchemy_brooq.demo.worker``, started by `crew`.

It logs to its standard output, and ends with the process that started it, however that one ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Final

from sqlalchemy import make_url

from sqlalchemy_brooq.demo import programs
from sqlalchemy_brooq.demo.handlers import build_queue, shop_engine

READY: Final = "ready "
"""What the line begins with that says that it works; the worker's identity follows."""


def main() -> int:
    """
    Work until SIGTERM, and return the exit code: 0 if nothing was left behind.
    """
    logging.raiseExceptions = False  # once nobody reads the log, nobody wants to hear of that either
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.INFO)
    orders = programs.read_orders()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    engine = shop_engine(make_url(orders["url"]))
    queue = build_queue(engine)

    def ready() -> None:
        health = queue.health()
        print(f"{READY}{health.worker if health else ''}", flush=True)

    report = queue.run(ready=ready)
    queue.close()
    engine.dispose()
    return 0 if report.clean else 1


def _end_with_parent() -> None:
    """
    End at once when the parent is gone: nobody is left to be told.
    """
    programs.await_release()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
