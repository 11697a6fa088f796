"""
What a test is told of each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import JobState, Label, Outcome
from sqlalchemy_brooq.worker.journal import Journal, Listeners, Meter

CRASHED = "crashed"
"""The one end of an attempt of which no worker ever writes."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """
    One attempt, and what became of it.
    """

    job_id: UUID
    """The job's ``id``."""
    topic: str
    """The job's topic."""
    attempt: int
    """From 1."""
    outcome: str
    """
    ``done``, ``failed``, ``dead`` or ``canceled``; ``preserved``, failed with the charge given back; ``requeued``;
    ``lost``, the lease was, and nothing was written; ``crashed``, on a fault that the test asked for.
    """
    state: JobState | None
    """Where the job stands after it; ``None`` if its row is gone."""
    error: str | None = None
    """What the attempt left in ``last_error``."""
    delay: timedelta | None = None
    """How long the job then waits for its next attempt."""
    trace: str | None = field(default=None, compare=False)
    """The traceback of what the handler raised and nobody asked it to."""

    def __repr__(self) -> str:
        again = f", again in {self.delay.total_seconds():.3g} s" if self.delay is not None else ""
        error = f": {self.error}" if self.error else ""
        return f"<{self.topic} {self.job_id} attempt {self.attempt}: {self.outcome}{again}{error}>"


class End(NamedTuple):
    """
    How an attempt ended, as the engine tells it.
    """

    claim: Claim
    label: Label
    outcome: Outcome | None
    trace: str | None


class Notebook(Journal):
    """
    A journal whose entries can be read.

    Args:
        meter: Where the engine counts.
        listeners: The consumer's callbacks.
        is_silent: Tells whether nothing is noted, because the worker has crashed.
    """

    def __init__(self, meter: Meter, listeners: Listeners, is_silent: Callable[[], bool]) -> None:
        super().__init__(meter, listeners)
        self.ends: list[End] = []
        self._is_silent = is_silent
        self._trace: str | None = None

    def settled_all(self, settled: Sequence[tuple[Claim, Outcome]]) -> None:
        """
        Note that outcomes were written.
        """
        for claim, outcome in settled:
            self.settled(claim, outcome)

    def settled(self, claim: Claim, outcome: Outcome) -> None:
        """
        Note that an outcome was written.
        """
        if not self._is_silent():
            super().settled(claim, outcome)
            self._note(claim, outcome.label, outcome)

    def lost(self, claim: Claim) -> None:
        """
        Note that nothing was written.
        """
        if not self._is_silent():
            super().lost(claim)
            self._note(claim, Label.LOST, None)

    def raised(self, claim: Claim, trace: str) -> None:
        """
        Note what a handler raised.
        """
        if not self._is_silent():
            super().raised(claim, trace)
            self._trace = trace

    def _note(self, claim: Claim, label: Label, outcome: Outcome | None) -> None:
        self.ends.append(End(claim, label, outcome, self._trace))
        self._trace = None
