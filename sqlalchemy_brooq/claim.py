"""
What a handler gets: the claim on its job, and how it hears of an interruption.

Owns the hand-over between the engine's threads and a handler. Writes no SQL;
jobs to chain and callbacks are kept for whoever settles the claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy_brooq.errors import Interruption
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.vocabulary import Lease

_interrupting = threading.Lock()
"""Orders an interruption against a handler that is about to wait; held for moments only."""


class Claim:
    """
    One attempt at a job: an immutable view of its row, and the attempt's context.
    """

    __slots__ = (
        "_callbacks",
        "_cause",
        "_chained",
        "_meta",
        "_until",
        "_waker",
        "_worker",
        "attempt",
        "available_at",
        "claimed_at",
        "created_at",
        "id",
        "payload",
        "priority",
        "requeues",
        "topic",
    )

    id: UUID
    """The job's id: stable over its attempts, so it can serve as an idempotency key elsewhere."""
    topic: str
    """What kind of work it is."""
    payload: Any
    """The JSON value that the producer gave; this attempt's own copy."""
    attempt: int
    """Number of this attempt, from 1: how many times the job has been claimed."""
    requeues: int
    """How many earlier attempts ended with an expired lease."""
    priority: int
    """-2 to 2; higher goes first."""
    created_at: datetime
    """When the enqueuing transaction began, by the database's clock; with a time zone, as the other moments."""
    available_at: datetime
    """The moment before which it was not to be claimed."""
    claimed_at: datetime
    """When this attempt was claimed, by the database's clock; part of the fence."""
    _worker: str
    _until: datetime
    _cause: Interruption | None
    _waker: threading.Event | None
    _chained: tuple[Job, ...] | None
    _callbacks: tuple[Callable[[Any], Any], ...] | None
    _meta: str
    """Only where the row has one: see `annotate`."""

    def __init__(
        self,
        id: UUID,  # noqa: A002 - the column's name
        topic: str,
        payload: Any,
        attempt: int,
        requeues: int,
        priority: int,
        created_at: datetime,
        available_at: datetime,
        claimed_at: datetime,
        worker: str,
        until: datetime,
    ) -> None:
        put = object.__setattr__
        put(self, "id", id)
        put(self, "topic", topic)
        put(self, "payload", payload)
        put(self, "attempt", attempt)
        put(self, "requeues", requeues)
        put(self, "priority", priority)
        put(self, "created_at", created_at)
        put(self, "available_at", available_at)
        put(self, "claimed_at", claimed_at)
        put(self, "_worker", worker)
        put(self, "_until", until)
        put(self, "_cause", None)
        put(self, "_waker", None)
        put(self, "_chained", None)
        put(self, "_callbacks", None)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Claim is a view: {name} can't be assigned")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Claim is a view: {name} can't be deleted")

    def __repr__(self) -> str:
        return f"<Claim {self.topic} {self.id} attempt {self.attempt}>"

    @property
    def lease(self) -> Lease:
        """
        Who holds the job, and until when by the database's clock, as last renewed.
        """
        return Lease(self._worker, self._until)

    @property
    def interrupted(self) -> bool:
        """
        Whether the engine wants the handler to end.
        """
        return self._cause is not None

    @property
    def cause(self) -> Interruption | None:
        """
        Why the engine wants the handler to end, or ``None``.
        """
        return self._cause

    def check(self) -> None:
        """
        Raise the interruption's cause, if there is one; call it between steps of long work.

        Raises:
            Interruption: The engine wants the handler to end: one of its subclasses.
        """
        if self._cause is not None:
            raise self._cause

    def wait(self, seconds: float) -> None:
        """
        Sleep for *seconds*, or until an interruption, and then raise its cause.

        For plain handlers: in an ``async def`` handler it would block the loop; use ``asyncio.sleep`` there.

        Raises:
            Interruption: The engine wants the handler to end: one of its subclasses.
        """
        with _interrupting:
            if self._cause is None and self._waker is None:
                object.__setattr__(self, "_waker", threading.Event())
            waker = self._waker
        if waker is not None:
            waker.wait(seconds)
        self.check()

    def chain(self, *jobs: Job) -> None:
        """
        Enqueue *jobs* in the transaction that writes this job as done, and only then.

        A job that can't be enqueued then is a failure of this attempt, and nothing of the transaction commits.

        Raises:
            TypeError: One of them is not a `Job`.
        """
        for job in jobs:
            if not isinstance(job, Job):
                raise TypeError(f"chain() takes Job objects, not {type(job).__name__} {job!r}")
        object.__setattr__(self, "_chained", (*(self._chained or ()), *jobs))

    def on_success(self, callback: Callable[[Any], Any]) -> None:
        """
        Call *callback* with a session in the transaction that writes this job as done.

        If it raises, nothing of that transaction commits and the attempt counts as failed. An ``async def``
        handler on an ``AsyncEngine`` gives an ``async`` callback, which gets an ``AsyncSession``; every other
        callback is plain, gets a ``Session`` and runs on a thread.

        Raises:
            TypeError: *callback* can't be called.
        """
        if not callable(callback):
            raise TypeError(f"on_success() takes a function, not {type(callback).__name__} {callback!r}")
        object.__setattr__(self, "_callbacks", (*(self._callbacks or ()), callback))


def interrupt(claim: Claim, cause: Interruption) -> None:
    """
    Tell the handler of *claim* why it is to end; a later cause replaces an earlier one.
    """
    with _interrupting:
        object.__setattr__(claim, "_cause", cause)
        waker = claim._waker  # noqa: SLF001 - this module owns it
    if waker is not None:
        waker.set()


def renewed(claim: Claim, until: datetime) -> None:
    """
    Note that the lease of *claim* was renewed.
    """
    object.__setattr__(claim, "_until", until)


def annotate(claim: Claim, meta: str) -> None:
    """
    Note what the row of *claim* has as ``meta``, which is JSON text that nobody has looked at.
    """
    object.__setattr__(claim, "_meta", meta)


def meta_of(claim: Claim) -> str | None:
    """
    Return what the row of *claim* has as ``meta``, as JSON text that nobody has looked at.
    """
    found: str | None = getattr(claim, "_meta", None)
    return found


def chained(claim: Claim) -> tuple[Job, ...]:
    """
    Return the jobs to enqueue when *claim* is settled as done.
    """
    return claim._chained or ()  # noqa: SLF001 - this module owns it


def callbacks(claim: Claim) -> tuple[Callable[[Any], Any], ...]:
    """
    Return what to call when *claim* is settled as done.
    """
    return claim._callbacks or ()  # noqa: SLF001 - this module owns it
