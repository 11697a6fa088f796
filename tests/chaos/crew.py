"""
The worker processes as their supervisor sees them: started, killed, frozen, continued, stopped, replaced.

Knows processes and signals. What a worker does is `tests.chaos.worker`'s business, whom to hit `tests.chaos.faults`'.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from sqlalchemy import URL

from tests.servers import ROOT, checkout_environment
from tests.waiting import eventually

KINDS: Final = ("plain", "async", "plain")
"""What the workers are: as many as there are kinds."""


class WorkerProcess:
    """
    One worker process, from its start on.
    """

    def __init__(self, kind: str, url: URL, seconds: float, log: Path) -> None:
        self.kind = kind
        self.frozen = False
        self.asked_to_end = False
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        shown = url.render_as_string(hide_password=False)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", shown, kind, str(seconds)],
                cwd=ROOT,
                env=checkout_environment(),
                stdout=out,
                stderr=err,
            )

    @property
    def identity(self) -> str:
        """
        What it writes into ``locked_by``; empty until it works.
        """
        text = self._out.read_text()
        return text.strip() if text.endswith("\n") else ""

    @property
    def code(self) -> int | None:
        """
        Its exit code; ``None`` while it runs.
        """
        return self._process.poll()

    def kill(self) -> None:
        """
        Kill it as ``kill -9`` does.
        """
        self.asked_to_end = True
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """
        Stop all of its threads where they are.
        """
        self.frozen = True
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """
        Let it go on.
        """
        self.frozen = False
        self._process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """
        Send it SIGTERM.
        """
        self.asked_to_end = True
        self._process.terminate()

    def await_end(self, timeout: float) -> int:
        """
        Return its exit code once it has ended; kill it after *timeout* seconds.
        """
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        self.kill()
        return self._process.wait()

    def last_words(self) -> str:
        """
        Return the end of its log.
        """
        return "\n".join(self._err.read_text(errors="replace").splitlines()[-20:])


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

    def _start(self, kind: str) -> WorkerProcess:
        self._started += 1
        return WorkerProcess(kind, self._url, self._seconds, self._folder / f"worker-{self._started:03}")
