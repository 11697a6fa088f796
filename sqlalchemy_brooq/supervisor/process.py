"""
One worker process, seen by its supervisor: how it is started, told to stop, asked, and what it has said.

Decides nothing: when to do what is the crew's.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy_brooq.supervisor.channel import VARIABLE, Channel, Record, Summons

PATIENCE: Final = 15.0
"""Seconds beyond its grace period that a worker has to end; of these it needs ten if handlers ignore it."""
#: Signals that this program handles or ignores; in the worker they are to be as in any program.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


class Process:
    """
    A running worker.

    Args:
        place: Which of the workers it is, from 0.
        command: What to execute.
        environ: Its environment.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, place: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.place = place
        self.started_at = time.monotonic()
        self.settings: Record | None = None
        """What it said before it started."""
        self.readiness: Record | None = None
        """What it said when it had started."""
        self.final = False
        """Whether it said that its end is one that a new start won't mend."""
        self.deaf = False
        """Whether it has closed its end of the channel."""
        self.kill_at: float | None = None
        """When it is killed if it still lives."""
        self._questions: dict[str, _Question] = {}
        self._guard = threading.Lock()
        self.channel, self.pid = _spawned(command, environ)

    def __repr__(self) -> str:
        return f"process {self.place} (pid {self.pid})"

    @property
    def name(self) -> str:
        """
        What tells it apart from all others that live.
        """
        return str(self.pid)

    @property
    def stopping(self) -> bool:
        """
        Whether it was told to stop.
        """
        return self.kill_at is not None

    def stop(self, now: float) -> None:
        """
        Ask it to stop; a second time, to hurry.
        """
        if self.kill_at is None:
            grace = 0.0 if self.settings is None else float(self.settings["grace"])
            self.kill_at = now + grace + PATIENCE
            self._send(signal.SIGTERM)
        else:
            # No second signal: it may have got two already, if ours was sent to both of us.
            self.kill_at = min(self.kill_at, now + PATIENCE)
            self.channel.send("hurry")

    def kill(self, again_at: float) -> None:
        """
        Kill it.
        """
        self.kill_at = again_at
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        # It was not reaped yet, so the pid is still its own.
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ended(self) -> None:
        """
        Let go of it; who waits for an answer gets none.
        """
        self.channel.close()
        with self._guard:
            questions = list(self._questions.values())
        for question in questions:
            question.answered.set()

    # -- questions, from any thread

    def ask(self, what: str) -> _Question:
        """
        Ask, without waiting. While a question is open it isn't asked again: who doesn't listen isn't shouted at.
        """
        with self._guard:
            question = self._questions.get(what)
            if question is None:
                question = self._questions[what] = _Question()
                self.channel.send("ask", what=what)
            return question

    def answered(self, record: Record) -> None:
        """
        Take note of an answer.
        """
        with self._guard:
            question = self._questions.pop(record["what"], None)
        if question is not None:
            question.answer = record["answer"]
            question.answered.set()


class _Question:
    """
    Something that a worker was asked.
    """

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.answer: Any = None

    def wait(self, until: float) -> Any:
        """
        Return the answer, or ``None`` if there is none at the time *until*.
        """
        self.answered.wait(max(until - time.monotonic(), 0.0))
        return self.answer


def _spawned(command: Sequence[str], environ: Mapping[str, str]) -> tuple[Channel, int]:
    """
    Start *command*, and return our end of the channel and its pid.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        summons = str(Summons(os.getpid(), theirs.fileno()))
        pid = os.posix_spawn(
            sys.executable,
            list(command),
            {**environ, VARIABLE: summons},
            setpgroup=0,  # a group of its own: a terminal's Ctrl-C is the supervisor's to pass on
            setsigmask=[],
            setsigdef=_SIGNALS,
        )
    return Channel(ours), pid
