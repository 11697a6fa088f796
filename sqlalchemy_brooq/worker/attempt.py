"""
One attempt in this process, from its claim to its settled outcome, and the table of all of them.

Owns who may decide about an attempt: its handler's end, the watchdog and the heartbeat meet here,
and the first one concludes. Knows no SQL and starts no thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy_brooq.claim import Claim, interrupt
from sqlalchemy_brooq.config import ResolvedOptions
from sqlalchemy_brooq.errors import Interruption
from sqlalchemy_brooq.vocabulary import JobState, Outcome

if TYPE_CHECKING:  # it imports OpenTelemetry
    from sqlalchemy_brooq.spans import JobSpan


@dataclass(frozen=True, slots=True)
class Handler:
    """
    A registered handler: what to call for a topic, and how.
    """

    topic: str
    function: Callable[..., Any]
    options: ResolvedOptions
    is_async: bool


class Stage(Enum):
    """
    How far an attempt has come in this process.
    """

    WAITING = auto()
    """Claimed ahead of a free slot."""
    RUNNING = auto()
    SETTLING = auto()
    """Concluded; its outcome is on the way to the database."""
    OVER = auto()
    """Nothing is left to write."""


_concluding: Final = threading.Lock()
"""Orders the first conclusion of an attempt before any other; held for moments only."""


class Attempt:
    """
    An attempt's state in the engine. All times are of this process's monotonic clock.
    """

    __slots__ = (
        "_concluded",
        "break_off",
        "claim",
        "given_up",
        "handler",
        "hung",
        "interrupted_at",
        "lease_end",
        "outcome",
        "refusals",
        "settling_since",
        "span",
        "stage",
        "started_at",
        "stop",
        "task",
        "tried",
    )

    def __init__(self, claim: Claim, handler: Handler, lease_end: float) -> None:
        self.claim = claim
        self.handler = handler
        self.lease_end = lease_end
        """Before this moment the lease has not run out by the database's clock."""
        self.stage = Stage.WAITING
        self.started_at = 0.0
        self.interrupted_at: float | None = None
        self.hung = False
        self.given_up = False
        """The engine concluded it while its handler went on."""
        self.outcome: Outcome | None = None
        self.refusals = 0
        """How often the database refused to write the outcome."""
        self.tried: dict[JobState, Outcome] | None = None
        """Outcomes that may have been written, by the states that they enter: the answers were lost."""
        self.stop: Callable[[Attempt, Interruption], None] | None = None
        """How to reach a running handler beyond its claim."""
        self.task: asyncio.Task[None] | None = None
        """Runs an async handler; none that is over, or the two would keep each other."""
        self.settling_since = 0.0
        self.break_off: Callable[[], object] | None = None
        """How to end a settling transaction of its own that a frozen server holds up."""
        self.span: JobSpan | None = None
        """Where the attempt is traced."""
        self._concluded = False

    def may_have_written(self, outcome: Outcome) -> None:
        """
        Keep in mind that *outcome* may have been written, though nobody said so.
        """
        self.tried = {**(self.tried or {}), outcome.state: outcome}

    def start(self) -> bool:
        """
        Begin to run; False if it was concluded while it waited.
        """
        with _concluding:
            if self._concluded:
                return False
            self.stage = Stage.RUNNING
            self.started_at = time.monotonic()
            return True

    def conclude(self) -> bool:
        """
        Claim the right to decide about the outcome: True for the first who asks, and never again.
        """
        with _concluding:
            if self._concluded:
                return False
            self._concluded = True
            self.stage = Stage.SETTLING
            self.settling_since = time.monotonic()
            return True

    def interrupt(self, cause: Interruption) -> None:
        """
        Tell the handler to end; a no-op once the attempt is concluded.
        """
        with _concluding:
            if self._concluded:
                return
            if self.interrupted_at is None:
                self.interrupted_at = time.monotonic()
            interrupt(self.claim, cause)
            stop = self.stop
        if stop is not None:
            stop(self, cause)

    def give_up(self, cause: Interruption) -> bool:
        """
        Tell the handler to end, and conclude without waiting for it; False if it was concluded before.
        """
        with _concluding:
            if self._concluded:
                return False
            self._concluded = True
            self.given_up = True
            if self.interrupted_at is None:
                self.interrupted_at = time.monotonic()
            interrupt(self.claim, cause)
            stop, running = self.stop, self.stage is Stage.RUNNING
            self.stage = Stage.SETTLING
        if stop is not None and running:
            stop(self, cause)
        return True


class InFlight:
    """
    Every attempt whose lease this process holds: waiting, running, or concluded and not yet settled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # As objects: by id alone it would not do, one process can hold two runs of one job. A dict keeps their order.
        self._attempts: dict[Attempt, None] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """
        Take in freshly claimed attempts.
        """
        with self._lock:
            self._attempts.update(dict.fromkeys(attempts))

    def remove(self, attempts: Collection[Attempt]) -> None:
        """
        Let go of attempts that are settled, or lost.
        """
        with self._lock:
            for attempt in attempts:
                attempt.stage = Stage.OVER
                self._attempts.pop(attempt, None)

    def all(self) -> list[Attempt]:
        """
        Return a copy of the table.
        """
        with self._lock:
            return list(self._attempts)


def outcome_of(attempt: Attempt) -> Outcome:
    """
    Return the outcome that was decided for *attempt*.
    """
    if attempt.outcome is None:
        raise RuntimeError(f"{attempt.claim!r} reached the pump without an outcome")
    return attempt.outcome


def by_job(attempt: Attempt) -> int:
    """
    Sort attempts into the order in which rows are locked; an id's number compares faster than the id.
    """
    return attempt.claim.id.int
