"""
The producer's doors: enqueue, cancel and replay in the transaction of the consumer's own session or connection.

Sync; ``aio`` runs the same functions for async sessions. A door checks everything that it can before it sends any
SQL, and never leaves the consumer's transaction aborted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.orm import Session, scoped_session

from sqlalchemy_brooq import bulk, commits, tracing, unit_of_work
from sqlalchemy_brooq.commits import EnqueuedNote, Tally, subscribe
from sqlalchemy_brooq.durations import shown
from sqlalchemy_brooq.errors import BrooqError, InvalidJob, JobNotFound
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.intake import ROUNDS
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.statements.producing import cancel_job, default_isolation, find_job, find_replay, replay_job
from sqlalchemy_brooq.vocabulary import REPLAY_KEY, TERMINAL, Enqueued, JobState

__all__ = ["EnqueuedNote", "SessionLike", "cancel", "enqueue", "enqueue_many", "replay", "subscribe"]

SessionLike: TypeAlias = Session | scoped_session[Any] | Connection
"""What a producer works in."""
SESSIONS: Final = (Session, scoped_session, Connection)
READ_COMMITTED: Final = "READ COMMITTED"
_defaults: Final[WeakKeyDictionary[Dialect, bool]] = WeakKeyDictionary()
"""Whether a server's default is READ COMMITTED; there is a dialect for each engine."""


def enqueue(session: SessionLike, job: Job) -> Enqueued:
    """
    Enqueue *job* in the transaction of *session*.

    The object is persistent afterwards; while a flush is running it may be pending until the flush has ended.
    If a job with its topic and key exists, it stands for that one, unless the session has an object for it
    already: then it gets that one's id and stays transient. With a ``Connection`` it always stays transient.

    Args:
        session: A ``Session``, ``scoped_session`` or ``Connection``. The job exists once its transaction commits.
        job: An object given a second time is no second job.

    Returns:
        The id of the row, and whether this call created it.

    Raises:
        InvalidJob: The job is refused; no SQL was sent. A payload that ``jsonb`` can't hold is a `PayloadError`.
        TypeError: *session* or *job* is something else.
    """
    target = target_of("enqueue", session)
    bulk.check("enqueue", job)
    if isinstance(target, Session):
        return unit_of_work.enqueue(target, job)
    answer, tally = bulk.write_one(target, job)
    _note(target, tally)
    return answer


def enqueue_many(session: SessionLike, jobs: Iterable[Job]) -> list[Enqueued]:
    """
    Enqueue *jobs* in the transaction of *session*, thousands in a statement.

    Reads *jobs* and writes them in slices, so that any number may come from a generator, which may use the session
    itself. If one is refused, or reading raises, nothing of this call is left: what was written is deleted. The
    objects stay transient, and get the ids of their rows. Otherwise as `enqueue`.

    With psycopg, jobs without a key and a time go by COPY, which ``before_cursor_execute`` doesn't see. Keys are
    written in sorted order within a slice of 10,000; producers of more that are the same should sort theirs.

    Args:
        session: As for `enqueue`.
        jobs: Any iterable of `Job` objects, also a generator.

    Returns:
        As from `enqueue`, in the order of *jobs*.

    Raises:
        InvalidJob: A job is refused.
        TypeError: *session* or *jobs*, or one of these, is something else.
    """
    target = target_of("enqueue_many", session)
    if isinstance(jobs, Job) or not isinstance(jobs, Iterable):
        raise TypeError(f"enqueue_many() takes an iterable of Job objects, not a {type(jobs).__name__}")
    results, tally = bulk.write(target, jobs)
    _note(target, tally)
    return results


def enqueue_alone(connection: Connection, job: Job) -> Enqueued:
    """
    Enqueue *job* in a READ COMMITTED transaction of its own, on a *connection* that has none.

    Where the server gives that to a statement alone, and no wake-up goes with it, BEGIN and COMMIT are saved.
    """
    bulk.check("enqueue", job)
    quiet = commits.is_quiet(connection, job.__dict__.get("topic", ""))  # what is persistent may be expired
    level: IsolationLevel = "AUTOCOMMIT" if quiet and _defaults.get(connection.dialect) else READ_COMMITTED
    with connection.execution_options(isolation_level=level).begin():
        answer, tally = bulk.write_one(connection, job)
        tally.announced.append(commits.wake(connection, tally.wakeups()))
        if connection.dialect not in _defaults:
            _defaults[connection.dialect] = connection.scalar(default_isolation()) == READ_COMMITTED.lower()
    commits.publish(tally)
    return answer


def cancel(session: SessionLike, job_id: UUID | str) -> bool:
    """
    Call a job off in the transaction of *session*, whether it waits or is running.

    A running handler is told once the transaction has committed; what it returns is not recorded any more.

    Args:
        session: As for `enqueue`.
        job_id: The job's ``id``, also as text.

    Returns:
        Whether this call canceled it; False if it was over already.

    Raises:
        JobNotFound: There is no such job.
        InvalidJob: *job_id* is no UUID.
        TypeError: *session* is something else.
    """
    target = target_of("cancel", session)
    job_id = checked_id(job_id)
    fate = _canceled(bulk.connect(target), job_id)
    if isinstance(target, Session):
        unit_of_work.show(target, job_id, {"state": fate.state, "updated_at": fate.updated_at})
    _note(target, Tally(holders={fate.holder} if fate.holder else ()))
    return fate.canceled


class _Fate(NamedTuple):
    """
    How a call to cancel found a job, or left it.
    """

    canceled: bool
    """Whether by this call."""
    state: str
    updated_at: datetime
    holder: str | None = None
    """Who was running it."""


def _canceled(connection: Connection, job_id: UUID) -> _Fate:
    """
    Cancel a job, or find it over.
    """
    for _ in range(ROUNDS):
        written = connection.execute(cancel_job(), {"job_id": job_id}).one_or_none()
        if written is not None:
            return _Fate(True, JobState.CANCELED.value, *written)
        found = connection.execute(find_job(), {"job_id": job_id}).one_or_none()
        if found is None:
            raise JobNotFound(job_id)
        updated_at, state = found
        if state in TERMINAL:
            return _Fate(False, state, updated_at)
        # It was committed between the two statements, and can be canceled.
    raise BrooqError(
        f"job {job_id} is {state}, and was not canceled {ROUNDS} times over: a trigger or a policy that isn't this"
        " library's keeps the change out"
    )


def replay(session: SessionLike, job_id: UUID | str) -> Enqueued:
    """
    Enqueue a new job like one that is over, in the transaction of *session*: its topic, payload and priority.

    The new one has the key ``replay:<id>``, so that a second call answers with the first call's job.

    Args:
        session: As for `enqueue`.
        job_id: The ``id`` of the job that is over, also as text.

    Returns:
        The id of the new job, and whether this call created it.

    Raises:
        JobNotFound: There is no such job.
        InvalidJob: It is not over yet, or *job_id* is no UUID.
        BrooqError: The new job was inserted and deleted by others again and again, while this looked for it.
        TypeError: *session* is something else.
    """
    target = target_of("replay", session)
    topic, answer = _replayed(bulk.connect(target), checked_id(job_id))
    _note(target, Tally({(topic, answer.created): 1}))
    return answer


def _replayed(connection: Connection, job_id: UUID) -> tuple[str, Enqueued]:
    """
    Insert a job that replays another one, or find it; return its topic as well.
    """
    meta: dict[str, Any] = {"replays": str(job_id)}
    if (tracer := tracing.active) is not None:
        meta = tracer.noted(meta)
    key = f"{REPLAY_KEY}{job_id}"
    for _ in range(ROUNDS):
        new = new_id()
        values = {"job_id": job_id, "id": new, "key": key, "meta": json.dumps(meta)}
        topic = connection.scalar(replay_job(), values)
        if topic is not None:
            return topic, Enqueued(new, created=True)
        found = connection.execute(find_replay(), {"job_id": job_id, "key": key}).one_or_none()
        if found is None:
            raise JobNotFound(job_id)
        topic, state, there = found
        if state not in TERMINAL:
            raise InvalidJob(f"job {job_id} is {state}: only a job that is done, dead or canceled can be replayed")
        if there is not None:
            return topic, Enqueued(there, created=False)
    raise BrooqError(
        f"a replay of job {job_id} can be neither inserted nor found, {ROUNDS} times over: either a unique index"
        " that isn't this library's refuses it, or a row with its key comes and goes"
    )


def target_of(door: str, session: SessionLike) -> Session | Connection:
    """
    Return what the function *door* was given to work in, or raise a ``TypeError`` that names what it takes.
    """
    if isinstance(session, scoped_session):
        session = cast("Session", session())
    if isinstance(session, Session | Connection):
        return session
    name = type(session).__name__
    hint = ""
    if name.startswith(("Async", "async")):
        hint = f": await a{door}() instead"
    elif name == "Engine":
        hint = ": open a Session on it, or use Queue.begin()"
    raise TypeError(f"{door}() takes a Session, scoped_session or Connection, not {name}{hint}")


def checked_id(job_id: UUID | str) -> UUID:
    """
    Return *job_id* as a UUID, or raise `InvalidJob`.
    """
    if isinstance(job_id, UUID):
        return job_id
    try:
        return UUID(job_id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidJob(f"job id {shown(job_id)} is refused: a UUID, or its text") from None


def _note(target: Session | Connection, tally: Tally) -> None:
    """
    Tell of *tally* when the transaction commits.

    A bare connection has no moment before its commit: there the workers' wake-up is sent with each call.
    """
    if isinstance(target, Session):
        unit_of_work.note(target, tally)
    elif tally:
        tally.announced.append(commits.wake(target, tally.wakeups()))
        commits.keep(target, tally)
