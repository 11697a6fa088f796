"""
One worker process of the chaos run: ``python -m tests.chaos.worker URL KIND SECONDS``.

Its sessions on the server bear its process id, so that the log of moves can tell who wrote an outcome. It writes its
identity to its standard output once it works. It ends with 0 after a clean stop, and with 75
(``EX_TEMPFAIL``) where it found no server to begin with: whoever supervises it starts another one.
"""

from __future__ import annotations

import logging
import os
import sys

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from tests.chaos.workload import build_queue


def main() -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(threadName)s %(message)s", level=logging.INFO)
    logging.getLogger("sqlalchemy_brooq.worker").addFilter(lambda record: not record.getMessage().startswith("JobDone"))
    url, kind, seconds = sys.argv[1:]
    mine = make_url(url).update_query_dict({"application_name": str(os.getpid())})
    queue = build_queue(mine, "async" if kind == "async" else "plain", float(seconds))
    ready: list[str] = []

    def announce() -> None:
        health = queue.health()
        ready.append(health.worker if health else "")
        sys.stdout.write(f"{ready[0]}\n")
        sys.stdout.flush()

    try:
        report = queue.run(ready=announce)
    except OperationalError as error:
        if ready:
            raise
        logging.getLogger("tests.chaos").warning("no server to begin with: %s", error.orig)
        return os.EX_TEMPFAIL
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
