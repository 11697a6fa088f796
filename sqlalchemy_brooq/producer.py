"""
The producer's doors: enqueue, cancel and replay in the transaction of the consumer's own session or connection.

Sync; ``aio`` runs the same functions for async sessions. A door checks everything that it can before it sends any
SQL, and never leaves the consumer's transaction aborted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from sqlalchemy_brooq import commits, intake, unit_of_work
from sqlalchemy_brooq.commits import EnqueuedNote, Tally, subscribe
from sqlalchemy_brooq.durations import shown
from sqlalchemy_brooq.errors import BrooqError, InvalidJob, JobNotFound
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.intake import Answer, Draft
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.payload import Serializer
from sqlalchemy_brooq.statements.producing import cancel_job, find_job, find_replay, replay_job
from sqlalchemy_brooq.vocabulary import TERMINAL, Enqueued, JobState

__all__ = ["EnqueuedNote", "SessionLike", "cancel", "enqueue", "enqueue_many", "replay", "subscribe"]

SessionLike: TypeAlias = Session | scoped_session[Any] | Connection
"""What a producer works in."""
SESSIONS: Final = (Session, scoped_session, Connection)
_ROUNDS: Final = 50


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
    target = _target("enqueue", session)
    _check_jobs("enqueue", [job])
    if isinstance(target, Session):
        return unit_of_work.enqueue(target, job)
    return _bulk(target, [job])[0]


def enqueue_many(session: SessionLike, jobs: Iterable[Job]) -> list[Enqueued]:
    """
    Enqueue *jobs* in the transaction of *session*, a thousand in a statement.

    Reads *jobs* to the end before it sends any SQL, so that one that is refused leaves nothing behind. The objects
    stay transient, and get the ids of their rows. Otherwise as `enqueue`.

    Returns:
        As from `enqueue`, in the order of *jobs*.
    """
    target = _target("enqueue_many", session)
    if isinstance(jobs, Job) or not isinstance(jobs, Iterable):
        raise TypeError(f"enqueue_many() takes an iterable of Job objects, not a {type(jobs).__name__}")
    return _bulk(target, _check_jobs("enqueue_many", list(jobs)))


def cancel(session: SessionLike, job_id: UUID | str) -> bool:
    """
    Call a job off in the transaction of *session*, whether it waits or is running.

    A running handler is told once the transaction has committed; what it returns is not recorded any more.

    Returns:
        Whether this call canceled it; False if it was over already.

    Raises:
        JobNotFound: There is no such job.
    """
    target = _target("cancel", session)
    job_id = _checked_id(job_id)
    connection = _connect(target)
    updated_at, holder = connection.execute(cancel_job(), {"job_id": job_id}).one_or_none() or (None, None)
    canceled = updated_at is not None
    state: str = JobState.CANCELED.value
    if not canceled:
        found = connection.execute(find_job(), {"job_id": job_id}).one_or_none()
        if found is None:
            raise JobNotFound(job_id)
        updated_at, state = found
    if isinstance(target, Session):
        unit_of_work.show(target, job_id, {"state": state, "updated_at": updated_at})
    _note(target, Tally(holders={holder} if holder else ()))
    return canceled


def replay(session: SessionLike, job_id: UUID | str) -> Enqueued:
    """
    Enqueue a new job like one that is over, in the transaction of *session*: its topic, payload and priority.

    The new one has the key ``replay:<id>``, so that a second call answers with the first call's job.

    Raises:
        JobNotFound: There is no such job.
        InvalidJob: It is not over yet.
    """
    target = _target("replay", session)
    job_id = _checked_id(job_id)
    connection = _connect(target)
    key, meta = f"replay:{job_id}", json.dumps({"replays": str(job_id)})
    for _ in range(_ROUNDS):
        new = new_id()
        topic = connection.execute(replay_job(), {"job_id": job_id, "id": new, "key": key, "meta": meta}).scalar()
        if topic is not None:
            _note(target, Tally({(topic, True): 1}))
            return Enqueued(new, created=True)
        found = connection.execute(find_replay(), {"job_id": job_id, "key": key}).one_or_none()
        if found is None:
            raise JobNotFound(job_id)
        topic, state, there = found
        if state not in TERMINAL:
            raise InvalidJob(f"job {job_id} is {state}: only a job that is done, dead or canceled can be replayed")
        if there is not None:
            _note(target, Tally({(topic, False): 1}))
            return Enqueued(there, created=False)
    raise BrooqError(f"a replay of job {job_id} can be neither inserted nor found, {_ROUNDS} times over")


def _target(door: str, session: SessionLike) -> Session | Connection:
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


def _check_jobs(door: str, jobs: Sequence[Job]) -> Sequence[Job]:
    for job in jobs:
        if not isinstance(job, Job):
            raise TypeError(f"{door}() takes Job objects, not {type(job).__name__}")
    return jobs


def _checked_id(job_id: UUID | str) -> UUID:
    if isinstance(job_id, UUID):
        return job_id
    try:
        return UUID(job_id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidJob(f"job id {shown(job_id)} is refused: a UUID, or its text") from None


def _connect(target: Session | Connection) -> Connection:
    return unit_of_work.connect(target) if isinstance(target, Session) else target


def _note(target: Session | Connection, tally: Tally) -> None:
    """
    Tell of *tally* when the transaction commits.

    A bare connection has no moment before its commit: there the workers' wake-up is sent with each call.
    """
    if isinstance(target, Session):
        unit_of_work.note(target, tally)
    elif tally:
        commits.keep(target, tally)
        commits.wake(target, tally.wakeups())


def _bulk(target: Session | Connection, jobs: Sequence[Job]) -> list[Enqueued]:
    """
    Write *jobs* without making their objects persistent; what was added to the session is written as that.
    """
    serializer = _serializer(target)
    drafts = {job: intake.draft(job, serializer) for job in dict.fromkeys(jobs) if _is_loose(target, job)}
    pending = {job for job in jobs if instance_state(job).key is None} - drafts.keys()
    connection = _connect(target)
    if isinstance(target, Session):
        unit_of_work.write_pending(target, pending)
    answers = intake.write(connection, list({draft.id: draft for draft in drafts.values()}.values()))
    for job, draft in drafts.items():
        # Past the instrumentation: an object without a row has nothing to track.
        job.__dict__.update(id=answers[draft.id].id, created=answers[draft.id].created)
    results = list(_results(jobs, drafts, answers, pending))
    counts = Counter(
        (drafts[job].topic, result.created) for job, result in zip(jobs, results, strict=True) if job in drafts
    )
    _note(target, Tally(counts))
    return results


def _results(
    jobs: Iterable[Job], drafts: Mapping[Job, Draft], answers: dict[UUID, Answer], pending: set[Job]
) -> Iterator[Enqueued]:
    """
    Yield what became of each of *jobs*: only the first time that one is met, it can have been created.
    """
    for job in jobs:
        if job in drafts:
            answer = answers[drafts[job].id]
            answers[drafts[job].id] = answer._replace(created=False)
            yield Enqueued(answer.id, answer.created)
        else:
            identity = instance_state(job).identity
            yield Enqueued(identity[0] if identity else job.id, created=bool(job.created) and job in pending)
            pending.discard(job)


def _is_loose(target: Session | Connection, job: Job) -> bool:
    """
    Whether *job* stands for no row, and no flush of *target* is to write it.
    """
    return instance_state(job).key is None and not (isinstance(target, Session) and job in target)


def _serializer(target: Session | Connection) -> Serializer | None:
    if isinstance(target, Session):
        return unit_of_work.serializer_of(target)
    return intake.serializer_of(target.dialect)
