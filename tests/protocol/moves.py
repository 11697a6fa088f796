"""
What is seen: the moves of jobs, and what is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final
from uuid import UUID

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import MOVES, Event, JobState
from sqlalchemy_brooq.worker.attempt import Attempt

Key = tuple[UUID, datetime]
"""What identifies an attempt: by its job's id alone, one process can hold two of one job."""
Row = Any
"""A job as it was read: a named tuple of the table's columns."""
ENTERED: Final = {enters: event for event, (_, enters) in MOVES.items()}


def key_of(attempt: Attempt) -> Key:
    """
    Return what identifies *attempt* among all of a process.
    """
    return attempt.claim.id, attempt.claim.claimed_at


class Kind(Enum):
    INSERT = auto()
    DELETE = auto()
    RENEWAL = auto()
    CLAIM = auto()
    END = auto()
    """An outcome, a cancellation, or a job given back."""
    REAP = auto()


@dataclass(frozen=True)
class Move:
    """
    One change of one job, as the trigger saw it.
    """

    at: datetime
    """When its transaction began."""
    old: Row
    new: Row

    @property
    def id(self) -> UUID:
        found: UUID = (self.new or self.old).id
        return found

    @property
    def key(self) -> Key:
        """
        The attempt that it ended, or began.
        """
        row = self.new if self.kind is Kind.CLAIM else self.old
        return row.id, row.claimed_at

    @property
    def event(self) -> Event:
        return ENTERED[self.new.state]

    @property
    def kind(self) -> Kind:
        if self.old is None:
            return Kind.INSERT
        if self.new is None:
            return Kind.DELETE
        if self.old.state == self.new.state:
            return Kind.RENEWAL
        if self.event is Event.CLAIMED:
            return Kind.CLAIM
        poisoned = self.event is Event.DEAD and self.new.last_error.startswith("lease expired")
        return Kind.REAP if poisoned or self.new.requeues != self.old.requeues else Kind.END

    def changed(self) -> set[str]:
        return {name for name in self.new._fields if getattr(self.old, name) != getattr(self.new, name)}


@dataclass(frozen=True)
class Scene:
    """
    What is committed, and which rows an open transaction has locked.
    """

    now: datetime
    rows: Mapping[UUID, Row]
    locked: frozenset[UUID]
    probes: Sequence[Key]

    def lives(self, claim: Claim | None, worker: str) -> bool:
        """
        Whether *claim* owns its row, as a claim of *worker*.
        """
        row = self.rows.get(claim.id) if claim else None
        return row is not None and (row.state, row.locked_by, row.claimed_at) == (
            JobState.PROCESSING,
            worker,
            claim and claim.claimed_at,
        )

    def is_free(self, job_id: UUID) -> bool:
        return job_id not in self.locked
