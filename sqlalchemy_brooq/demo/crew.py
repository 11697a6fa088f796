"""
The shop's worker processes, as the process sees them that started them.

Owns starting, stopping and killing them. What they do is `worker`'s and `handlers`' business.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from sqlalchemy import URL

from sqlalchemy_brooq.demo import programs
from sqlalchemy_brooq.demo.interrupts import Interrupts
from sqlalchemy_brooq.demo.worker import READY
from sqlalchemy_brooq.errors import BrooqError

START_TIMEOUT: Final = 20.0
STOP_TIMEOUT: Final = 15.0
_KEPT_LINES: Final = 2000


class WorkerFailed(BrooqError, RuntimeError):  # noqa: N818 - names the caller's situation
    """
    A worker ended, or didn't begin, though nobody had asked for that.
    """


class WorkerProcess:
    """
    One worker process, from its start on.

    Args:
        label: What the account calls it.
        url: The database.
    """

    def __init__(self, label: str, url: URL) -> None:
        self.label = label
        self.identity = ""
        """What it writes into ``locked_by``."""
        self.application = f"brooq-demo {label}"
        """What its sessions are called on the server."""
        self.ended_as_asked = False
        """Whether somebody stopped or killed it."""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._spoke = threading.Event()
        url = url.update_query_dict({"application_name": self.application})
        self._process = programs.start("worker", {"url": url.render_as_string(hide_password=False)})
        self._reader = threading.Thread(target=self._read, args=[self._process], daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """
        Its process id.
        """
        return self._process.pid

    @property
    def lines(self) -> tuple[str, ...]:
        """
        What it has logged so far.
        """
        return tuple(self._lines)

    def await_ready(self) -> None:
        """
        Return once it works.

        Raises:
            WorkerFailed: It ended, or took too long.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not self._spoke.wait(0.05):
            self.check()
            if time.monotonic() > deadline:
                raise WorkerFailed(f"{self.label} didn't start within {START_TIMEOUT:.0f} s{self._last_words()}")

    def check(self) -> None:
        """
        Raise `WorkerFailed` if it ended by itself.
        """
        if not self.ended_as_asked and (code := self._process.poll()) is not None:
            self._reader.join(1.0)
            raise WorkerFailed(f"{self.label} ended by itself with the exit code {code}{self._last_words()}")

    def kill(self) -> None:
        """
        Kill it as ``kill -9`` does.
        """
        self.ended_as_asked = True
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """
        Send it SIGTERM.
        """
        self.ended_as_asked = True
        self._process.terminate()

    def await_stop(self) -> int:
        """
        Return its exit code once it has ended; one that takes too long is killed.
        """
        try:
            return self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def end(self) -> None:
        """
        Make sure that it is gone, whatever it does.
        """
        self.kill()
        self._reader.join(5.0)
        programs.let_go(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for raw in process.stdout or ():
            line = raw.decode(errors="replace").rstrip()
            if line.startswith(READY):
                self.identity = line.removeprefix(READY)
                self._spoke.set()
            else:
                self._lines.append(line)

    def _last_words(self) -> str:
        return f"; its last words: {self._lines[-1]}" if self._lines else ""


class Crew:
    """
    All workers of a run; none of them outlives the block.
    """

    def __init__(self, url: URL, interrupts: Interrupts) -> None:
        self._url = url
        self._interrupts = interrupts
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def start(self, *labels: str) -> list[WorkerProcess]:
        """
        Start a worker for each of *labels*, all at once, and return when they work.
        """
        with self._interrupts.deferred():
            for label in labels:
                self._workers.append(WorkerProcess(label, self._url))
        started = self._workers[-len(labels) :]
        for worker in started:
            worker.await_ready()
        return started

    def check(self) -> None:
        """
        Raise `WorkerFailed` if one of them ended by itself.
        """
        for worker in self._workers:
            worker.check()

    def running(self) -> list[WorkerProcess]:
        """
        Return those that nobody has stopped or killed.
        """
        return [worker for worker in self._workers if not worker.ended_as_asked]

    def by_identity(self, identity: str) -> WorkerProcess:
        """
        Return the one that writes *identity* into ``locked_by``.
        """
        return next(worker for worker in self._workers if worker.identity == identity)

    def stop(self) -> list[int]:
        """
        Ask all that run to stop, and return their exit codes.
        """
        running = self.running()
        for worker in running:
            worker.ask_to_stop()
        return [worker.await_stop() for worker in running]

    def said(self, words: str) -> str | None:
        """
        Return the last line with *words* in it that any of them logged.
        """
        return next((line for worker in self._workers for line in reversed(worker.lines) if words in line), None)
