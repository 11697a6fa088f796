"""
One worker process of the shop: ``python -m sqlalchemy_brooq.demo.worker``, started by `crew`.

What it is to do comes through its standard input, where no other user can read it. That pipe also ties it to the
process that started it: it ends with that one, however that one ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any, Final

from sqlalchemy import make_url

from sqlalchemy_brooq.demo.handlers import build_queue, shop_engine

READY: Final = "ready "
"""What the line begins with that says that it works; the worker's identity follows."""

_STDIN: Final = 0


def main() -> int:
    """
    Work until SIGTERM, and return the exit code: 0 if nothing was left behind.
    """
    logging.raiseExceptions = False  # once nobody reads the log, nobody wants to hear of that either
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.INFO)
    orders = _orders()
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


def _orders() -> dict[str, Any]:
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (some := os.read(_STDIN, 1 << 16)):
            sys.exit(1)  # the parent is gone already
        line += some
    orders: dict[str, Any] = json.loads(line)
    return orders


def _end_with_parent() -> None:
    """
    Wait for the end of the pipe, and end at once: nobody is left to be told.
    """
    while os.read(_STDIN, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
