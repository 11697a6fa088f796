"""
The words of the queue and the rules of its states; the standard library only.

Owns the one table of moves between states. The SQL guards, the checks in Python,
the docs and the property tests read it; there is no other list of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID


class JobState(StrEnum):
    """
    Where a job stands.
    """

    PENDING = "pending"
    """Waits for its first attempt, or was requeued."""
    PROCESSING = "processing"
    """Claimed by a worker, which holds a lease on it."""
    FAILED = "failed"
    """An attempt failed; waits for the next one. Not a verdict."""
    DONE = "done"
    """Succeeded."""
    DEAD = "dead"
    """Failed with no attempts left."""
    CANCELED = "canceled"
    """Called off, by its handler or from outside."""


class Event(StrEnum):
    """
    What can happen to a job after it was enqueued.
    """

    CLAIMED = "JobClaimed"
    DONE = "JobDone"
    FAILED = "JobFailed"
    DEAD = "JobDead"
    CANCELED = "JobCanceled"
    REQUEUED = "JobRequeued"


class Notice(StrEnum):
    """
    What else a worker says of itself in the log; not a move of a job.
    """

    WORKER_STARTED = "WorkerStarted"
    WORKER_STOPPING = "WorkerStopping"
    WORKER_STOPPED = "WorkerStopped"
    LEASE_LOST = "LeaseLost"
    LEASES_EXPIRED = "LeasesExpired"
    ANSWER_LOST = "AnswerLost"
    HANDLER_RAISED = "HandlerRaised"
    ATTEMPT_TIMED_OUT = "AttemptTimedOut"
    HANDLER_HUNG = "HandlerHung"
    HANDLER_ABANDONED = "HandlerAbandoned"
    DELAY_CUT = "DelayCut"
    OUTCOME_REFUSED = "OutcomeRefused"
    RESULT_LEFT_OUT = "ResultLeftOut"
    JOBS_DELETED = "JobsDeleted"
    ROWS_HELD = "RowsHeld"
    LOOP_FAILED = "LoopFailed"
    LOOP_RECOVERED = "LoopRecovered"
    EVENTS_DROPPED = "EventsDropped"
    CALLBACK_RAISED = "CallbackRaised"


CLAIMABLE: Final = frozenset({JobState.PENDING, JobState.FAILED})
HELD: Final = frozenset({JobState.PROCESSING})
TERMINAL: Final = frozenset({JobState.DONE, JobState.DEAD, JobState.CANCELED})

#: event -> (states it may leave, state it enters). There is no other list of moves.
MOVES: Final[Mapping[Event, tuple[frozenset[JobState], JobState]]] = MappingProxyType(
    {
        Event.CLAIMED: (CLAIMABLE, JobState.PROCESSING),
        Event.DONE: (HELD, JobState.DONE),
        Event.FAILED: (HELD, JobState.FAILED),
        Event.DEAD: (HELD, JobState.DEAD),
        Event.CANCELED: (CLAIMABLE | HELD, JobState.CANCELED),
        Event.REQUEUED: (HELD, JobState.PENDING),
    }
)

PRIORITIES: Final = range(-2, 3)
MAX_NAME: Final = 255
"""Characters of a topic and of an idempotency key."""
MAX_ERROR: Final = 4_000
"""Characters of ``last_error``."""
REPLAY_KEY: Final = "replay:"
"""What the idempotency key of a replay begins with; the id of the job that it replays follows."""
CHANNEL: Final = "brooq"
"""The ``NOTIFY`` channel that wakes workers; its payload is a topic, or ``cancel:<worker>``."""


class Enqueued(NamedTuple):
    """
    What became of a job that was handed in.
    """

    id: UUID
    """The id of the job's row: the existing one's where the key was taken."""
    created: bool
    """False where a job with this topic and idempotency key existed already."""


class JobEvent(NamedTuple):
    """
    One thing that happened to one job, as a callback of `Queue.on` hears of it.
    """

    event: Event
    """Such as ``"JobDead"``; it compares equal to that text."""
    job_id: UUID
    """The job's ``id``."""
    topic: str
    """The job's topic."""
    attempt: int
    """The number of the attempt that it happened to, from 1."""
    error: str | None = None
    """What ``last_error`` says of it; ``None`` where all went well."""


class Lease(NamedTuple):
    """
    Who holds a job, and until when by the database's clock.
    """

    worker: str
    """The worker's name, as it stands in ``locked_by``."""
    until: datetime
    """When it runs out, by the database's clock, unless it is renewed."""


class Label(StrEnum):
    """
    How an attempt ended, as `brooq_settle_total` counts it.
    """

    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"
    PRESERVED = "preserved"
    REQUEUED = "requeued"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What is to be written about one attempt.
    """

    event: Event
    delay: timedelta = timedelta(0)
    """How long a failed job waits before its next attempt."""
    refund: bool = False
    """Whether the charge for the attempt is given back."""
    error: str | None = None
    """For ``last_error``; ``None`` keeps what is there."""
    result: str | None = None
    """The handler's return value as JSON text, where it opted in."""

    @property
    def state(self) -> JobState:
        """
        The state that this outcome enters.
        """
        return MOVES[self.event][1]

    @property
    def label(self) -> Label:
        """
        The outcome's name in the metrics.
        """
        if self.event is Event.REQUEUED:
            return Label.REQUEUED
        return Label.PRESERVED if self.refund else Label(self.state.value)


SUCCESS: Final = Outcome(Event.DONE)
"""The outcome of most attempts: done, and nothing more to say."""
