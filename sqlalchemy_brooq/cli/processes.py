"""
``--processes``: how the command becomes a supervisor, and how a worker finds out that it has one.

Owns the worker's end of the channel. What a supervisor does is its own package's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from sqlalchemy_brooq import supervisor
from sqlalchemy_brooq.cli.endings import Refused
from sqlalchemy_brooq.cli.logs import TEXT
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.service import health_report
from sqlalchemy_brooq.supervisor.channel import COUNTED, HEALTH, SAMPLED, VARIABLE, Channel, Summons
from sqlalchemy_brooq.supervisor.process import PATIENCE
from sqlalchemy_brooq.supervisor.totals import plain
from sqlalchemy_brooq.worker.signals import StopSignals

log = logging.getLogger("sqlalchemy_brooq.worker")

OPTION: Final = "--processes"
ORPHANED: Final = 2.0
"""Seconds within which a closed channel must have been a supervisor's end."""

COUNT: Final = 1.0
"""Seconds between two tellings of what was counted."""
SHARE: Final = 0.02
"""What part of the time that may take, where there is so much to tell that it takes long."""

_PR_SET_PDEATHSIG: Final = 1


def supervise(processes: int, level: str | None, form: str | None) -> NoReturn:
    """
    Become the supervisor of as many workers, each of which is this command once more.

    The process stays the same, and so small that a fork of it, or its death, could not hurt a worker: what was
    imported until here is gone.
    """
    if not any(word.partition("=")[0] == OPTION for word in sys.argv):
        raise Refused(f"{OPTION} is for the command line: a program that calls it has no command to start again")
    command = [sys.executable, *sys.orig_argv[1:]]
    log_as = {"level": (level or "info").upper(), "text": None if form == "json" else TEXT}
    orders = json.dumps({"command": command, "processes": processes, "log": log_as})
    program = Path(supervisor.__file__).with_name("__main__.py")
    os.execv(sys.executable, [sys.executable, "-P", str(program), orders])  # noqa: S606 - our own program


class Supervision:
    """
    A worker's end of the channel: it says how far it is, answers questions, and ends when its supervisor has.

    Args:
        summons: What the environment said.
    """

    def __init__(self, summons: Summons) -> None:
        self._summons = summons
        wire = socket.socket(fileno=summons.wire)
        wire.set_inheritable(False)
        self._channel = Channel(wire)
        self._go = threading.Event()
        self._patience = PATIENCE
        self._answers: Mapping[str, Callable[[], Any]] = {}
        self.signals = StopSignals(once=True)
        """What tells the worker to stop."""
        _end_with_parent(signal.SIGTERM)
        self._over = threading.Event()
        self._counting = threading.Lock()
        """Held from counting to telling: counts must not be told in another order."""
        threading.Thread(target=self._listen, name="brooq-supervised", daemon=True).start()

    @classmethod
    def found(cls) -> Self | None:
        """
        Return this worker's end, if it has a supervisor.

        Processes that a handler starts are not to find it.
        """
        text = os.environ.pop(VARIABLE, None)
        if text is None:
            return None
        try:
            return cls(Summons.parse(text))
        except (ValueError, OSError):
            raise Refused(
                f"{VARIABLE} is {text!r}, which no supervisor said: unset it, they set it themselves"
            ) from None

    def await_go(self, queue: Queue) -> None:
        """
        Tell how *queue* is to be run, and wait until it may: the supervisor binds the address before anybody claims.
        """
        config, metrics = queue.config, queue.metrics
        grace = config.shutdown_grace.total_seconds()
        self._patience += grace
        self._answers = {
            HEALTH: lambda: health_report(queue.health()),
            COUNTED: lambda: plain(metrics.counted()),
            SAMPLED: lambda: plain(metrics.sampled()),
        }
        self._channel.send("settings", listen=config.listen, token=config.api_token, grace=grace)
        self._go.wait()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """
        Tell now and then, and in the end, what the worker has counted: once it is killed nobody can ask it.
        """
        thread = threading.Thread(target=self._count, name="brooq-counted", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._tell_counts()

    def ready(self, queue: Queue) -> None:
        """
        Tell that the worker runs.
        """
        self._channel.send("ready", topics=sorted(queue.topics), slots=queue.config.workers)

    def final(self) -> None:
        """
        Tell that no other worker would fare better.
        """
        self._channel.send("final")

    def _listen(self) -> None:
        for record in self._channel.records():
            match record["say"]:
                case "go":
                    self._go.set()
                case "hurry":
                    self.signals.hurry()
                case "ask":
                    with self._counting:
                        self._channel.send("answer", what=record["what"], answer=self._answer(record["what"]))
        if self._is_orphan(ORPHANED):
            self._end()

    def _answer(self, what: str) -> Any:
        try:
            return self._answers[what]()
        except Exception:
            log.exception("the supervisor's question %r could not be answered", what)
            return None

    def _count(self) -> None:
        took = 0.0
        while not self._over.wait(max(COUNT, took / SHARE)):
            began = time.monotonic()
            self._tell_counts()
            took = time.monotonic() - began

    def _tell_counts(self) -> None:
        with self._counting:
            if (families := self._answer(COUNTED)) is not None:
                self._channel.send("counted", families=families)

    def _is_orphan(self, patience: float = 0.0) -> bool:
        """
        Tell whether the supervisor has ended; its files are closed a moment before its children are told.
        """
        until = time.monotonic() + patience
        while os.getppid() == self._summons.supervisor:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        return True

    def _end(self) -> None:
        """
        End as if asked to, and then in any case.
        """
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._patience)
        os._exit(1)


def _end_with_parent(number: int) -> None:
    """
    Let the kernel send *number* when the parent has ended, where it can: that reaches also who has no time to listen.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
