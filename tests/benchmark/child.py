"""
A process of a measurement: ``python -m tests.benchmark.child CONTESTANT ORDER``, with the order's values on stdin.

It says ``ready``, waits for ``go``, does what it is told, and prints what came of it, as a line of JSON. It ends when
the parent closes the pipe, and so also when the parent dies. Imports nothing but the standard library and the
contestant: it may run in an environment where nothing of ours is installed.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.benchmark.contestants import Contestant, find
from tests.benchmark.marks import Marks
from tests.benchmark.orders import ORDERS, Bulk, Order, Prepare, Single


class Pipe:
    """
    The parent, on the other end of stdin and stdout.

    Whatever else is printed goes to stderr: a library that prints would be taken for our answer.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def wait(self) -> None:
        """
        Say that everything is ready, and wait for the start.
        """
        self.say("ready")
        if not sys.stdin.readline():
            sys.exit(1)
        threading.Thread(target=self._await_end, daemon=True).start()

    def say(self, line: str) -> None:
        """
        Send a line.
        """
        self._out.write(f"{line}\n")
        self._out.flush()

    def _await_end(self) -> None:
        sys.stdin.read()
        self.ended.set()


def main() -> None:
    pipe = Pipe()
    logging.disable(logging.INFO)  # a line for each job would measure the log
    contestant = find(sys.argv[1])
    order = ORDERS[sys.argv[2]](**json.loads(sys.stdin.readline()))
    # As `brooq-worker run` does: see there.
    gc.collect()
    gc.freeze()
    carry_out(contestant, order, pipe)


def carry_out(contestant: Contestant, order: Order, pipe: Pipe) -> None:
    """
    Do what *order* says, and tell what came of it.
    """
    if isinstance(order, Prepare):
        pipe.wait()
        contestant.prepare(order.url)
        pipe.say("{}")
    elif isinstance(order, Bulk):
        pipe.say(json.dumps(contestant.bulk(order, pipe)))
    elif isinstance(order, Single):
        with ExitStack() as stack:
            marks = stack.enter_context(Marks(Path(order.marks), order.count)) if order.marks else None
            pipe.say(json.dumps(contestant.single(order, marks, pipe)))
    else:
        with Marks(Path(order.marks), order.count) as marks:
            contestant.work(order, marks, pipe)


if __name__ == "__main__":
    main()
