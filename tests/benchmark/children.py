"""
The processes of a measurement, as their parent sees them.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tests.benchmark.contestants import Contestant
from tests.benchmark.orders import Bulk, Order, Prepare, Single

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 15.0
"""Seconds that a process has to end by itself."""
LONGEST: Final = 240.0
"""Seconds after which a process that is still there is taken for one that hangs, and killed."""


class Child:
    """
    A process that carries out an order.
    """

    def __init__(self, contestant: Contestant, order: Order) -> None:
        self._name = f"{contestant.spec} {type(order).__name__}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [contestant.python, "-m", "tests.benchmark.child", contestant.spec, type(order).__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        self._limit = threading.Timer(LONGEST, self._process.kill)
        self._limit.daemon = True
        self._limit.start()
        with suppress(BrokenPipeError):  # what it died of, whoever waits for its answer is told
            self._say(json.dumps(asdict(order)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._limit.cancel()
        self._stdout.close()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> None:
        """
        Return when it is ready to start.
        """
        self._hear()

    def go(self) -> None:
        """
        Let it start.
        """
        self._say("go")

    def result(self) -> dict[str, float]:
        """
        Return what came of its order, once it is done.
        """
        answer: dict[str, float] = json.loads(self._hear())
        return answer

    def check(self) -> None:
        """
        Raise if it has ended.
        """
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"{self._name} ended too early, with exit code {code}: {self._last_words()}")

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _say(self, line: str) -> None:
        self._stdin.write(f"{line}\n")
        self._stdin.flush()

    def _hear(self) -> str:
        if not (line := self._stdout.readline()):
            self._process.wait()
            self.check()
        return line

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


@contextmanager
def running(contestant: Contestant, *orders: Order) -> Iterator[list[Child]]:
    """
    Start a process for each order; all are ready, and none has been told to go.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(Child(contestant, order)) for order in orders]
        for child in children:
            child.await_ready()
        yield children


def carry_out(contestant: Contestant, order: Prepare | Single | Bulk) -> dict[str, float]:
    """
    Carry out *order* in a process, and return what came of it.
    """
    with running(contestant, order) as (child,):
        child.go()
        return child.result()
