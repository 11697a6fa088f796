"""
The doors by which jobs come in, and the places that a producer may work in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Enqueued, Job

Door = Callable[[Any, Job], Enqueued]


def by_add(session: Session, job: Job) -> Enqueued:
    session.add(job)
    session.flush()
    return Enqueued(job.id, bool(job.created))


def by_enqueue_many(session: Any, job: Job) -> Enqueued:
    return brooq.enqueue_many(session, [job])[0]


SESSION_DOORS = [by_add, brooq.enqueue, by_enqueue_many]
DOORS = [brooq.enqueue, by_enqueue_many]


PLACES = ["session", "savepoint", "scoped_session", "connection", "autocommit"]


@contextmanager
def working_in(kind: str, engine: Engine) -> Iterator[Any]:
    """
    Everything that a producer may work in; what was done there is committed at the end.
    """
    if kind == "connection":
        with engine.begin() as connection:
            yield connection
    elif kind == "joined":
        with engine.begin() as connection, Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
            session.commit()
    elif kind == "savepoint":
        with Session(engine) as session, session.begin(), session.begin_nested():
            yield session
    elif kind == "scoped_session":
        registry = scoped_session(sessionmaker(engine))
        yield registry
        registry.commit()
        registry.remove()
    else:
        level = {"isolation_level": "AUTOCOMMIT"} if kind == "autocommit" else {}
        with Session(engine.execution_options(**level)) as session, session.begin():
            yield session


def commit(place: Any) -> None:
    """
    Commit, also where a context manager would: with what is left to do, that works.
    """
    if isinstance(place, Connection):
        place.get_transaction().commit()  # type: ignore[union-attr]
    else:
        place.commit()


def with_probe(engine: Engine) -> Engine:
    """
    Give the database the consumer's own table ``probe``.
    """
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE probe (n int PRIMARY KEY)"))
    return engine


def insert_probe(place: Any, n: int) -> None:
    place.execute(text("INSERT INTO probe VALUES (:n)"), {"n": n})


def probes(engine: Engine) -> set[int]:
    with engine.connect() as connection:
        return set(connection.scalars(text("SELECT n FROM probe")))


def stored(engine: Engine, state: str) -> UUID:
    lease = "'w1', now() + interval '1 min', now()" if state == "processing" else "NULL, NULL, NULL"
    insert = (
        "INSERT INTO job (topic, payload, priority, state, locked_by, locked_until, claimed_at, created_at) VALUES"
        f" ('t', '{{\"n\": 1.00000000000000000001}}', 1, '{state}', {lease}, now() - interval '1 h') RETURNING id"
    )
    with engine.begin() as connection:
        found: UUID = connection.scalar(text(insert))
    return found
