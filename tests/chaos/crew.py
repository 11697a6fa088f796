"""
The worker processes as their supervisor sees them: started, killed, frozen, continued, stopped, replaced.

Knows processes and signals. What a worker does is `tests.chaos.worker`'s business, whom to hit `tests.chaos.faults`'.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from sqlalchemy import URL

from tests.chaos.worker import work
from tests.chaos.workload import Kind
from tests.waiting import eventually

KINDS: Final[tuple[Kind, ...]] = ("plain", "async", "plain")
"""What the workers are: as many as there are kinds."""

_starting: Final = multiprocessing.get_context("forkserver")
"""Workers are forked off a process that has imported everything, and done nothing: on a busy machine a new Python would
take longer to begin than it has to live."""
_starting.set_forkserver_preload(["tests.chaos.worker", "sqlalchemy.dialects.postgresql.psycopg", "psycopg"])


class WorkerProcess:
    """
    One worker process, from its start on.
    """

    def __init__(self, kind: Kind, url: URL, seconds: float, log: Path) -> None:
        self.kind: Final = kind
        self.frozen = False
        self._identity, self._errors = log.with_suffix(".id"), log.with_suffix(".err")
        shown = url.render_as_string(hide_password=False)
        self._process = _starting.Process(target=work, args=[shown, kind, seconds, self._identity, self._errors])
        self._process.start()

    @property
    def identity(self) -> str:
        """
        What it writes into ``locked_by``; empty until it works.
        """
        with suppress(FileNotFoundError):
            text = self._identity.read_text()
            return text.strip() if text.endswith("\n") else ""
        return ""

    @property
    def code(self) -> int | None:
        """
        Its exit code; ``None`` while it runs.
        """
        return self._process.exitcode

    def kill(self) -> None:
        """
        Kill it as ``kill -9`` does.
        """
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        """
        Stop all of its threads where they are.
        """
        self.frozen = True
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """
        Let it go on.
        """
        self.frozen = False
        self._signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """
        Send it SIGTERM.
        """
        self._signal(signal.SIGTERM)

    def await_end(self, timeout: float) -> int:
        """
        Return its exit code once it has ended; kill it after *timeout* seconds.
        """
        self._process.join(timeout)
        if self.code is None:
            self.kill()
        return self.code if self.code is not None else -signal.SIGKILL

    def last_words(self) -> str:
        """
        Return the end of its log.
        """
        with suppress(FileNotFoundError):
            return "\n".join(self._errors.read_text(errors="replace").splitlines()[-20:])
        return ""

    def _signal(self, number: int) -> None:
        if self._process.pid is not None and self.code is None:
            os.kill(self._process.pid, number)


class Crew:
    """
    As many workers as there are `KINDS`; each that ends is replaced by one of its kind. None outlives the block.

    Args:
        url: The database.
        seconds: How long a handler takes on average.
        folder: Where the workers' logs go.
    """

    def __init__(self, url: URL, seconds: float, folder: Path) -> None:
        self._url = url
        self._seconds = seconds
        self._folder = folder
        self._started = 0
        self.workers: list[WorkerProcess] = []
        self.refused = 0
        """Workers that found no server to begin with."""
        self.collapsed: list[str] = []
        """The last words of workers that ended though nobody had asked them to, and nothing kept them from starting."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()

    def start(self) -> None:
        """
        Start all workers.
        """
        self.workers = [self._start(kind) for kind in KINDS]

    def ready(self) -> list[WorkerProcess]:
        """
        Return the workers that work: started, alive and not frozen.
        """
        return [worker for worker in self.workers if worker.identity and worker.code is None and not worker.frozen]

    def await_ready(self) -> None:
        """
        Return when all of them work.
        """

        def all_ready() -> bool:
            self.replace_ended()
            assert not self.collapsed, self.collapsed[0]
            return len(self.ready()) == len(KINDS)

        eventually(all_ready, timeout=60, message="a worker never started")

    def kill(self, worker: WorkerProcess) -> None:
        """
        Kill *worker* and start another one in its place.
        """
        worker.kill()
        self._replace(worker)

    def replace_ended(self) -> None:
        """
        Start another one for each that has ended by itself.
        """
        for worker in self.workers:
            if worker.code is None:
                continue
            if worker.code == os.EX_TEMPFAIL:
                self.refused += 1
            else:
                self.collapsed.append(f"exit code {worker.code}: {worker.last_words()}")
            self._replace(worker)

    def stop(self, timeout: float = 30.0) -> list[int]:
        """
        Ask all of them to stop, as a deployment does, and return their exit codes.
        """
        for worker in self.workers:
            worker.ask_to_stop()
        return [worker.await_end(timeout) for worker in self.workers]

    def _replace(self, worker: WorkerProcess) -> None:
        self.workers[self.workers.index(worker)] = self._start(worker.kind)

    def _start(self, kind: Kind) -> WorkerProcess:
        self._started += 1
        return WorkerProcess(kind, self._url, self._seconds, self._folder / f"worker-{self._started:03}")
