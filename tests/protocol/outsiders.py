"""
Everybody but the workers: producers, operators, and strangers who hold rows in open transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.vocabulary import Event, Outcome
from sqlalchemy_brooq.worker.store import REAP
from tests.protocol.moves import Row
from tests.protocol.stage import Pending

Spec = tuple[str, str | None, int, timedelta]
"""A job to hand in: topic, key, priority and delay."""
CANCELED: Final = Outcome(Event.CANCELED)


class Door(Enum):
    """
    The ways in.
    """

    ADD = auto()
    ENQUEUE = auto()
    ENQUEUE_MANY = auto()
    CONNECTION = auto()
    SQL = auto()


class Operation(Enum):
    """
    What is done to a job from outside.
    """

    CANCEL = auto()
    CANCEL_ON_A_CONNECTION = auto()
    CANCEL_BY_SQL = auto()
    REPLAY = auto()
    DELETE = auto()


class Stranger(Enum):
    """
    Who holds rows in an open transaction.
    """

    LOCK = auto()
    CANCEL = auto()
    REAP = auto()


def handed_in(door: Door, session: Session, specs: Sequence[Spec]) -> list[brooq.Enqueued]:
    """
    Hand jobs in by *door*, and return the answers.
    """
    jobs = [brooq.Job(topic, {"n": 1}, idempotency_key=k, priority=p, delay=d) for topic, k, p, d in specs]
    match door:
        case Door.ADD:
            session.add_all(jobs)
            session.flush()
            return [brooq.Enqueued(job.id, bool(job.created)) for job in jobs]
        case Door.ENQUEUE:
            return [brooq.enqueue(session, job) for job in jobs]
        case Door.ENQUEUE_MANY:
            return brooq.enqueue_many(session, jobs)
        case Door.CONNECTION:
            return brooq.enqueue_many(session.connection(), jobs)
        case Door.SQL:
            return [inserted(session, spec) for spec in specs]


def inserted(session: Session, spec: Spec) -> brooq.Enqueued:
    """
    Insert a job as any language could.
    """
    given = dict(zip(("topic", "key", "priority", "delay"), spec, strict=True))
    insert = text(
        "INSERT INTO job (topic, idempotency_key, priority, available_at) VALUES (:topic, :key, :priority,"
        " now() + :delay) ON CONFLICT (topic, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
        " RETURNING id"
    )
    if created := session.scalar(insert, given):
        return brooq.Enqueued(created, created=True)
    find = text("SELECT id FROM job WHERE topic = :topic AND idempotency_key = :key")
    return brooq.Enqueued(session.scalars(find, given).one(), created=False)


def called_off(operation: Operation, session: Session, job_id: UUID) -> bool:
    """
    Cancel a job in one of the ways, and return whether that did it.
    """
    if operation is Operation.CANCEL:
        return brooq.cancel(session, job_id)
    if operation is Operation.CANCEL_ON_A_CONNECTION:
        return brooq.cancel(session.connection(), job_id)
    statement = (
        "UPDATE job SET state = 'canceled', updated_at = now()"
        " WHERE id = :id AND state IN ('pending','failed','processing') RETURNING id"
    )
    return session.execute(text(statement), {"id": job_id}).one_or_none() is not None


def held_by(stranger: Stranger, connection: Connection, rows: Sequence[Row]) -> Pending:
    """
    Lock rows for a stranger, and return what its commit will bring.
    """
    ids = [row.id for row in rows]
    match stranger:
        case Stranger.LOCK:
            connection.execute(text("SELECT FROM job WHERE id = ANY(:ids) FOR UPDATE"), {"ids": ids})
        case Stranger.CANCEL:
            assert all(brooq.cancel(connection, id_) for id_ in ids)
            return Pending(connection, lambda move: CANCELED if move.id in ids else None)
        case Stranger.REAP:
            jobs = connection.execute(REAP, {"batch": 3, "guard_topic": [], "guard_limit": []}).all()
            return Pending(connection, reaps=frozenset(job.id for job in jobs))
    return Pending(connection)
