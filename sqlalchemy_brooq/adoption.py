"""
How a `Job` object comes to stand for a row that was not written by a flush, and how it is let go again.

Works on objects alone: whether there is a row, and which, was decided before. Knows no SQL and no transaction.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from sqlalchemy import ClauseElement, inspect
from sqlalchemy.orm import Mapper, Session, make_transient, make_transient_to_detached
from sqlalchemy.orm.attributes import flag_dirty, instance_state, set_committed_value
from sqlalchemy.orm.collections import collection_adapter

from sqlalchemy_brooq.intake import Answer
from sqlalchemy_brooq.model import JOB, Job, Later
from sqlalchemy_brooq.private import INSTANCE_STATE
from sqlalchemy_brooq.vocabulary import JobState

MAPPER: Final[Mapper[Job]] = inspect(Job)
_COLUMNS: Final = frozenset(JOB.c.keys())
_OURS: Final = _COLUMNS | {"created"}
_DOCUMENTS: Final = ("payload", "meta")
_NAMING: Final = frozenset({"id", "topic", "idempotency_key"})
"""What a new object and the row that has its key already agree about, once it has that row's id."""
_FRESH: Final[dict[str, Any]] = {
    "state": JobState.PENDING.value,
    "attempts": 0,
    "requeues": 0,
    "claimed_at": None,
    "locked_by": None,
    "locked_until": None,
    "last_error": None,
    "result": None,
    "meta": None,
    "idempotency_key": None,
}


def snapshot(job: Job) -> dict[str, Any]:
    """
    Return what *job* holds, for `restore`.
    """
    return {name: value for name, value in job.__dict__.items() if name != INSTANCE_STATE}


def restore(job: Job, saved: dict[str, Any]) -> None:
    """
    Make *job* transient again, with the values that it had.

    SQLAlchemy alone would leave an object behind that it takes for persistent, and whose
    expired attributes are lost: added again, it would never be inserted.
    """
    make_transient(job)
    for name in _OURS & job.__dict__.keys():
        del job.__dict__[name]
    job.__dict__.update(saved)
    for relationship in instance_state(job).mapper.relationships:
        if relationship.uselist and saved.get(relationship.key) is not None:
            # The rollback has expired it; it is the object's again.
            collection_adapter(saved[relationship.key]).invalidated = False


def become(session: Session, job: Job, answer: Answer) -> None:
    """
    Make *job* persistent: the row was written from it.

    What the row's defaults are is known, so that reading an attribute needs no SELECT, which async code couldn't do.
    An *answer* without its moments leaves those to be loaded.
    """
    values = job.__dict__
    for name, default in _FRESH.items():
        if values.get(name) is None:
            values[name] = default
    if answer.created_at is not None:
        if "created_at" not in values:
            values.setdefault("updated_at", answer.created_at)
        values.update(available_at=answer.available_at, created_at=answer.created_at)
    elif isinstance(values.get("available_at"), Later):
        del values["available_at"]
    job.created = True
    _enter(session, job)


def stand_for(session: Session, job: Job, job_id: UUID) -> None:
    """
    Make *job* persistent as the row *job_id*, which has its key; the row's other columns are loaded when asked for.
    """
    job.__dict__["id"] = job_id
    job.created = False
    _enter(session, job)
    session.expire(job, list(_COLUMNS - _NAMING))


def _enter(session: Session, job: Job) -> None:
    """
    Make *job* persistent, whether it is pending or transient.

    Through public doors: a pending object leaves the session and comes back as one that was detached.
    """
    state = instance_state(job)
    if job in session:
        session.expunge(job)
    unsaved = {name: old for name, old in state.committed_state.items() if name not in _COLUMNS}
    make_transient_to_detached(job)
    session.add(job)
    if unsaved:
        # Relationships of the object's own: the flush still has to see what was put there.
        state.committed_state.update(unsaved)
        flag_dirty(job)


def held(session: Session, job: Job, job_id: UUID) -> Job | None:
    """
    Return the object of *job*'s class that *session* holds for a row, without loading one.

    An object of another class may stand for the same row: a consumer's subclass has an identity of its own.
    """
    found: Job | None = session.identity_map.get(instance_state(job).mapper.identity_key_from_primary_key((job_id,)))
    return found


def all_held(session: Session, job_id: UUID) -> list[Job]:
    """
    Return the objects that *session* holds for a row, without loading any.
    """
    found = (
        session.identity_map.get(mapper.identity_key_from_primary_key((job_id,)))
        for mapper in MAPPER.self_and_descendants
    )
    return [*{id(job): job for job in found if job is not None}.values()]


def give_way(session: Session, job: Job, holder: Job) -> None:
    """
    Leave *job* transient and let *holder* stand for the row: a session has one object a row.
    """
    redirect(session, job, holder)
    if job in session:
        session.expunge(job)
    job.__dict__["id"] = instance_state(holder).identity[0]  # type: ignore[index] # persistent, so it has one
    job.created = False


def redirect(session: Session, job: Job, holder: Job) -> None:
    """
    Point the relationships of what *session* is to write at *holder*, where they point at *job*.
    """
    for owner in [*session.new, *session.dirty]:
        _point_to(owner, job, holder)
        if owner not in session:  # on its way it was nobody's, which delete-orphan doesn't suffer
            session.add(owner)


def _point_to(owner: object, job: Job, holder: Job) -> None:
    """
    Replace *job* by *holder* in the relationships of *owner*.
    """
    for relationship in instance_state(owner).mapper.relationships:
        value = owner.__dict__.get(relationship.key)
        if value is None or relationship.viewonly or not relationship.mapper.isa(MAPPER):
            continue
        if not relationship.uselist:
            if value is job:
                setattr(owner, relationship.key, holder)
        elif any(member is job for member in collection_adapter(value)):
            _exchange(value, job, holder)


def _exchange(collection: Any, job: Job, holder: Job) -> None:
    """
    Replace *job* by *holder* in a relationship's collection, at its place in a list; never have *holder* twice.
    """
    adapter = collection_adapter(collection)
    if any(member is holder for member in adapter):
        adapter.remove_with_event(job)
    elif isinstance(collection, list):
        collection[collection.index(job)] = holder
    else:
        adapter.remove_with_event(job)
        adapter.append_with_event(holder)


def changed_documents(job: Job) -> list[str]:
    """
    Return the attributes of a persistent *job* that hold JSON which the next flush is to write.
    """
    changed = instance_state(job).committed_state
    documents = (name for name in _DOCUMENTS if name in changed)
    return [name for name in documents if not isinstance(job.__dict__.get(name), ClauseElement | None)]


def show(job: Job, values: dict[str, Any]) -> None:
    """
    Let a persistent *job* show what its row says.
    """
    for name, value in values.items():
        set_committed_value(job, name, value)


def forget_state(job: Job) -> None:
    """
    Let a persistent *job* ask its row again.
    """
    session = instance_state(job).session
    if session is not None:
        session.expire(job, ["state", "updated_at"])
