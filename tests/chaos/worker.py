"""
One worker process of the chaos run.

It writes its identity to a file once it works. Its sessions on the server bear its process id, so that the log of moves
can tell who wrote an outcome. It ends with 0 after a clean stop, and with 75 (``EX_TEMPFAIL``) where it found no server
to begin with: whoever supervises it starts another one.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from sqlalchemy_brooq.worker import assembly
from tests.chaos.workload import Kind, build_queue

PAUSE: Final = 0.2
"""Seconds before a worker that found no server ends, and the next one looks for it."""

log = logging.getLogger("tests.chaos")


def work(url: str, kind: Kind, seconds: float, identity: Path, errors: Path) -> None:
    """
    Work until a signal comes, and end the process.

    Args:
        url: The database.
        kind: The kind of engine.
        seconds: How long a handler takes on average.
        identity: Where to write what the worker is called in ``locked_by``.
        errors: Where to log.
    """
    _end_with_parent()
    with errors.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(threadName)s %(message)s", level=logging.INFO)
    logging.getLogger("sqlalchemy_brooq.worker").addFilter(lambda record: not record.getMessage().startswith("JobDone"))
    assembly.OVERLAP = 2  # type: ignore[misc] # final in the product; here two pumps, as a worker with many slots has them
    queue = build_queue(make_url(url).update_query_dict({"application_name": str(os.getpid())}), kind, seconds)

    def announce() -> None:
        if (health := queue.health()) is not None:
            identity.write_text(f"{health.worker}\n")

    try:
        report = queue.run(ready=announce)
    except OperationalError as error:
        if identity.exists():
            raise
        log.warning("no server to begin with: %s", error.orig)
        time.sleep(PAUSE)
        sys.exit(os.EX_TEMPFAIL)
    sys.exit(0 if report.clean else 1)


def _end_with_parent() -> None:
    """
    Don't outlive the run, however it ends.
    """

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
