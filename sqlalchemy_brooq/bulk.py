"""
Many jobs in one call: read in slices, written without a flush, and answered in order.

The objects stay transient; what was added to the session is written as the session's. Tells nobody: the caller does.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from sqlalchemy_brooq import intake, tracing, unit_of_work
from sqlalchemy_brooq.book import connection_of
from sqlalchemy_brooq.commits import Tally
from sqlalchemy_brooq.intake import Draft
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.payload import Serializer
from sqlalchemy_brooq.private import json_serializer
from sqlalchemy_brooq.vocabulary import Enqueued

Target: TypeAlias = Session | Connection

SLICE: Final = 10_000
"""Jobs that are held at a time."""
SLICE_SIZE: Final = 2**20
"""Characters of payloads that are held at a time; the objects that they were made of may be many times larger."""


def write(target: Target, jobs: Iterable[Job]) -> tuple[list[Enqueued], Tally]:
    """
    Write *jobs*, and return what became of each, and what is to be told of it.

    If one is refused, or reading raises, what was written before is deleted again. Not by a savepoint: reading *jobs*
    may flush, and the session wouldn't know that what it flushed was rolled back.
    """
    results: list[Enqueued] = []
    tally = Tally()
    theirs: set[UUID] = set()
    try:
        for part in _slices(target, jobs):
            results += part.write(tally, theirs)
            part.forget()
    except Exception:
        _take_back(target, [one.id for one in results if one.created and one.id not in theirs])
        raise
    return results, tally


def write_one(connection: Connection, job: Job) -> tuple[Enqueued, Tally]:
    """
    Write one job as `write` does, without what it takes to write many.
    """
    if instance_state(job).key is not None:
        (answer,), tally = write(connection, [job])
        return answer, tally
    if (tracer := tracing.active) is not None:
        tracer.stamp(job)
    draft = intake.draft(job, _serializer(connection))
    written = intake.write(connection, [draft])[draft.id]
    # Past the instrumentation: an object without a row has nothing to track.
    job.__dict__.update(id=written.id, created=written.created)
    return Enqueued(written.id, written.created), Tally({(draft.topic, written.created): 1})


def connect(target: Target) -> Connection:
    """
    Return the connection to the database of the jobs; before, a session writes what was added to it.
    """
    return unit_of_work.connect(target) if isinstance(target, Session) else target


def check(door: str, job: Job) -> None:
    """
    Refuse what is no job.
    """
    if not isinstance(job, Job):
        raise TypeError(f"{door}() takes Job objects, not {type(job).__name__}")


def _take_back(target: Target, ids: Sequence[UUID]) -> None:
    """
    Delete what was written. Where the transaction has failed, the consumer's rollback will do that.
    """
    if ids:
        with contextlib.suppress(DBAPIError, PendingRollbackError):
            intake.take_back(connection_of(target) if isinstance(target, Session) else target, ids)


def _slices(target: Target, jobs: Iterable[Job]) -> Iterator[_Slice]:
    """
    Read *jobs* and check them, a slice at a time.
    """
    part = _Slice(target)
    for job in jobs:
        check("enqueue_many", job)
        part.read(job)
        if part.is_full():
            yield part
            part = _Slice(target)
    if part.jobs:
        yield part


class _Slice:
    """
    Jobs that were read, and not written yet.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._serializer = _serializer(target)
        self._drafts: dict[Job, Draft] = {}
        self._size = 0
        self._added: list[Job] = []
        """Those that are a session's own: added to it, or persistent."""
        self.jobs: list[Job] = []

    def read(self, job: Job) -> None:
        """
        Take *job*, and check it unless its session does that.
        """
        state = instance_state(job)
        session = self._target if state.session_id is not None and isinstance(self._target, Session) else None
        if session is not None and job not in session:
            session.add(job)  # raises: the object is another session's
        self.jobs.append(job)
        if session is not None or state.key is not None:
            self._added.append(job)
        elif job not in self._drafts:
            if (tracer := tracing.active) is not None:
                tracer.stamp(job)
            draft = self._drafts[job] = intake.draft(job, self._serializer)
            self._size += len(draft.payload)

    def is_full(self) -> bool:
        """
        Whether it is time to write.
        """
        return len(self.jobs) >= SLICE or self._size >= SLICE_SIZE

    def write(self, tally: Tally, theirs: set[UUID]) -> list[Enqueued]:
        """
        Write the jobs, and return what became of each; the session's are not counted in *tally*, but noted in *theirs*.
        """
        pending = self._pending()
        connection = connect(self._target)
        if isinstance(self._target, Session):
            unit_of_work.write_pending(self._target, pending)
        self._write_loose(connection)
        return self._answers(pending, tally, theirs)

    def _answers(self, pending: set[Job], tally: Tally, theirs: set[UUID]) -> list[Enqueued]:
        """
        Tell what became of each job, in the order in which they were read.
        """
        added = set(self._added)
        results: list[Enqueued] = []
        kinds: list[tuple[str, bool]] = []
        for job in self.jobs:  # only the first time that one is met, it can have been created
            if job in added:
                results.append(_owned(job, pending))
                theirs.add(results[-1].id)
            else:
                values = job.__dict__  # which is what the attributes of an object without a row would answer
                created = self._drafts.pop(job, None) is not None and values["created"]
                kinds.append((values["topic"], created))
                results.append(Enqueued(values["id"], created))
        for kind, count in Counter(kinds).items():
            tally.counts[kind] += count
        return results

    def _write_loose(self, connection: Connection) -> None:
        """
        Write the jobs that are no session's, and tell their objects.
        """
        distinct = {draft.id: draft for draft in reversed(self._drafts.values())}  # of several with one id the first
        answers = intake.write(connection, [*reversed(distinct.values())])
        for job, draft in self._drafts.items():
            answer = answers[draft.id]
            # Past the instrumentation: an object without a row has nothing to track.
            job.__dict__.update(id=answer.id, created=answer.created and distinct.pop(draft.id, None) is not None)

    def forget(self) -> None:
        """
        Let go of the jobs, before the next ones are read.
        """
        self.jobs.clear()
        self._added.clear()
        self._drafts.clear()

    def _pending(self) -> set[Job]:
        """
        Return the jobs that the session has still to write, with those that were added to it since they were read.
        """
        if isinstance(self._target, Session) and self._target.new:
            late = [job for job in self._drafts if job in self._target]
            for job in late:
                del self._drafts[job]
            self._added += late
        return {job for job in self._added if instance_state(job).key is None}


def _owned(job: Job, pending: set[Job]) -> Enqueued:
    """
    Tell what became of a session's own job, which is in *pending* until it was told of.
    """
    identity = instance_state(job).identity
    created = bool(job.created) and job in pending
    pending.discard(job)
    return Enqueued(identity[0] if identity else job.id, created)


def _serializer(target: Target) -> Serializer | None:
    if isinstance(target, Session):
        return unit_of_work.serializer_of(target)
    return json_serializer(target.dialect)
