"""
A process of a measurement: ``python -m tests.benchmark.child CONTESTANT ORDER``, with the order's values on stdin.

It says ``ready``, waits for ``go``, does what it is told, and prints what came of it. It ends when the parent closes
the pipe, and so also when the parent dies. Imports nothing but the standard library and the contestant.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.benchmark import orders
from tests.benchmark.contestants import find
from tests.benchmark.marks import Marks


class Pipe:
    """
    The parent, on the other end of stdin and stdout.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()

    def wait(self) -> None:
        """
        Say that everything is ready, and wait for the start.
        """
        self.say("ready")
        if not sys.stdin.readline():
            sys.exit(1)
        threading.Thread(target=self._await_end, daemon=True).start()

    @staticmethod
    def say(line: str) -> None:
        """
        Send a line.
        """
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def _await_end(self) -> None:
        sys.stdin.read()
        self.ended.set()


def main() -> None:
    logging.disable(logging.INFO)  # a line for each job would measure the log
    contestant, order = find(sys.argv[1]), sys.argv[2]
    values = json.loads(sys.stdin.readline())
    # As `brooq-worker run` does: see there.
    gc.collect()
    gc.freeze()
    pipe = Pipe()
    with ExitStack() as stack:
        marks = None
        if values.get("marks"):
            marks = stack.enter_context(Marks(Path(values["marks"]), values["count"]))
        if order == "Single":
            pipe.say(json.dumps(contestant.single(orders.Single(**values), marks, pipe)))
        elif order == "Bulk":
            pipe.say(json.dumps(contestant.bulk(orders.Bulk(**values), pipe)))
        elif marks is not None:
            contestant.work(orders.Work(**values), marks, pipe)


if __name__ == "__main__":
    main()
