"""
What a producer's commit tells its own process and others: once a topic, and never of what came to nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from sqlalchemy_brooq.commits import EnqueuedNote, subscribe
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.model import metadata
from tests.consumer import Base, Order, listen
from tests.recording import Heard, jobs, listening, noted, recorded


@pytest.fixture
def heard(database_url: URL) -> Iterator[Heard]:
    with listening(database_url) as heard:
        yield heard


@pytest.fixture
def notes() -> Iterator[list[EnqueuedNote]]:
    with noted() as notes:
        yield notes


def told(notes: list[EnqueuedNote]) -> list[dict[tuple[str, bool], int]]:
    return [dict(note.counts) for note in notes]


def test_each_topic_is_announced_once_when_the_transaction_commits(
    engine: Engine, session: Session, heard: Heard, notes: list[EnqueuedNote]
) -> None:
    brooq.enqueue(session, Job("enqueued"))
    brooq.enqueue_many(session, [Job("enqueued"), Job("many"), Job("many", idempotency_key="K")])
    brooq.enqueue(session, Job("many", idempotency_key="K"))
    session.add_all([Job("added"), Job("added")])
    assert heard() == []
    assert notes == []

    with recorded(engine) as statements:
        session.commit()

    assert len([one for one in statements if "pg_notify" in one]) == 2  # what is known before the last flush, and after
    assert sorted(heard()) == ["added", "enqueued", "many"]
    assert told(notes) == [{("enqueued", True): 2, ("many", True): 2, ("many", False): 1, ("added", True): 2}]
    assert notes[0].topics == {"enqueued", "many", "added"}


def test_a_key_that_exists_wakes_nobody(engine: Engine, session: Session, heard: Heard) -> None:
    brooq.enqueue(session, Job("t", idempotency_key="K"))
    session.commit()
    heard()

    with recorded(engine) as statements, noted() as notes:
        brooq.enqueue(session, Job("t", idempotency_key="K"))
        session.commit()

    assert not any("pg_notify" in one for one in statements)
    assert heard() == []
    assert (told(notes), notes[0].topics) == ([{("t", False): 1}], frozenset())


def test_what_was_rolled_back_is_not_told(session: Session, heard: Heard, notes: list[EnqueuedNote]) -> None:
    brooq.enqueue(session, Job("a"))
    session.rollback()
    brooq.enqueue(session, Job("b"))
    session.close()
    with session.begin_nested() as savepoint:
        brooq.enqueue(session, Job("c"))
        with session.begin_nested():
            brooq.enqueue_many(session, [Job("d")])
        savepoint.rollback()
    brooq.enqueue(session, Job("e"))
    session.commit()

    assert heard() == ["e"]
    assert told(notes) == [{("e", True): 1}]


def test_a_released_savepoint_is_no_commit(session: Session, heard: Heard, notes: list[EnqueuedNote]) -> None:
    with session.begin_nested():
        brooq.enqueue(session, Job("t"))

    assert (heard(), notes) == ([], [])
    session.commit()
    assert (heard(), told(notes)) == (["t"], [{("t", True): 1}])


@pytest.mark.parametrize("name", ["before_flush", "after_flush"])
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("key", [None, "K"])
def test_a_job_made_by_the_commits_own_flush_is_announced(
    engine: Engine, session: Session, heard: Heard, notes: list[EnqueuedNote], name: str, seen: bool, key: str | None
) -> None:
    Base.metadata.create_all(engine)
    if seen:
        brooq.enqueue(session, Job("seen"))
    listen(session, name, lambda: session.add(Job("t", idempotency_key=key)))
    session.add(Order())

    session.commit()

    expected = ["seen", "t"] if seen else ["t"]
    assert sorted(heard()) == expected
    assert [note.topics for note in notes] == [set(expected)]


def test_a_failed_commit_tells_nothing(
    engine: Engine, session: Session, heard: Heard, notes: list[EnqueuedNote]
) -> None:
    session.execute(text("CREATE TABLE probe (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    session.commit()
    brooq.enqueue(session, Job("t"))
    session.execute(text("INSERT INTO probe VALUES (1), (1)"))

    with pytest.raises(Exception, match="duplicate key"):
        session.commit()

    assert (heard(), notes, jobs(engine)) == ([], [], [])


def test_a_cancel_wakes_the_holder_once_it_commits(
    engine: Engine, session: Session, heard: Heard, notes: list[EnqueuedNote]
) -> None:
    jobs_held = [brooq.enqueue(session, Job("t")).id for _ in range(3)]
    session.commit()
    lease = "state = 'processing', locked_until = now() + interval '1 min', claimed_at = now()"
    for job_id, worker in zip(jobs_held, ["host:1:ab", "host:1:ab", "x" * 8_000], strict=True):
        session.execute(text(f"UPDATE job SET {lease}, locked_by = :w WHERE id = :id"), {"w": worker, "id": job_id})
    session.commit()
    heard()
    notes.clear()

    for job_id in jobs_held:
        brooq.cancel(session, job_id)
    assert heard() == []
    session.commit()

    assert heard() == ["cancel:host:1:ab"]  # the other name is longer than a notification can be
    assert notes[0].holders == {"host:1:ab", "x" * 8_000}


# -- connections


def test_a_bare_connection_announces_with_each_call_and_counts_at_its_commit(
    engine: Engine, heard: Heard, notes: list[EnqueuedNote]
) -> None:
    with engine.connect() as connection:
        brooq.enqueue(connection, Job("a"))
        with recorded(engine) as statements:
            brooq.enqueue_many(connection, [Job("a"), Job("b")])
        assert (heard(), notes) == ([], [])
        connection.commit()
        assert (sorted(heard()), told(notes)) == (["a", "b"], [{("a", True): 2, ("b", True): 1}])

        brooq.enqueue(connection, Job("rolled.back"))
        connection.rollback()
        with connection.begin():
            brooq.enqueue(connection, Job("c"))
            savepoint = connection.begin_nested()
            brooq.enqueue(connection, Job("rolled.back"))
            savepoint.rollback()
            with connection.begin_nested():
                brooq.enqueue(connection, Job("d"))
        brooq.enqueue(connection, Job("closed"))

    assert len(statements) == 2
    assert sorted(heard()) == ["c", "d"]
    assert told(notes[1:]) == [{("c", True): 1, ("d", True): 1}]


def test_a_savepoint_that_is_older_than_the_first_job_is_taken_back(engine: Engine, notes: list[EnqueuedNote]) -> None:
    with engine.begin() as connection:
        savepoint = connection.begin_nested()
        brooq.enqueue(connection, Job("rolled.back"))
        savepoint.rollback()
        brooq.enqueue(connection, Job("t"))

    assert told(notes) == [{("t", True): 1}]


def test_savepoints_are_told_apart_whenever_the_first_job_came(engine: Engine, notes: list[EnqueuedNote]) -> None:
    with engine.begin() as connection:
        brooq.enqueue(connection, Job("root"))
        with connection.begin_nested():
            outer = connection.begin_nested()
            inner = connection.begin_nested()
            brooq.enqueue(connection, Job("rolled.back"))
            inner.commit()
            deeper = connection.begin_nested()
            brooq.enqueue(connection, Job("rolled.back"))
            deeper.rollback()
            outer.rollback()
            brooq.enqueue(connection, Job("released"))
    with engine.begin() as connection:
        with connection.begin_nested():
            brooq.enqueue(connection, Job("first"))
        later = connection.begin_nested()
        brooq.enqueue(connection, Job("rolled.back"))
        later.rollback()

    assert told(notes) == [{("root", True): 1, ("released", True): 1}, {("first", True): 1}]


def test_a_connection_may_prepare_a_transaction_after_an_ordinary_one(notes: list[EnqueuedNote]) -> None:
    with LocalPostgres(durable=False, settings={"max_prepared_transactions": "2"}) as server:
        engine = create_engine(server.url())
        metadata.create_all(engine)
        with engine.connect() as connection:
            with connection.begin():
                brooq.enqueue(connection, Job("ordinary"))
            with connection.begin_twophase() as transaction:
                brooq.enqueue(connection, Job("prepared"))
                transaction.prepare()
                transaction.commit()
            with connection.begin_twophase() as transaction:
                brooq.enqueue(connection, Job("rolled.back"))
                transaction.rollback()
            with connection.begin():
                brooq.enqueue(connection, Job("ordinary"))
        engine.dispose()

    assert told(notes) == [{("ordinary", True): 1}, {("prepared", True): 1}, {("ordinary", True): 1}]


@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only", "conditional_savepoint"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_session_that_joined_a_transaction_tells_when_that_one_commits(
    engine: Engine, heard: Heard, notes: list[EnqueuedNote], mode: Any, commits: bool
) -> None:
    with engine.connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            session.add(Job("t"))
            session.commit()
        assert (heard(), notes, jobs(engine)) == ([], [], [])
        transaction.commit() if commits else transaction.rollback()

    expected = (["t"], [{("t", True): 1}], 1) if commits else ([], [], 0)
    assert (heard(), told(notes), len(jobs(engine))) == expected


def test_a_session_that_owns_its_connections_transaction_tells_at_its_commit(
    engine: Engine, notes: list[EnqueuedNote]
) -> None:
    with engine.connect() as connection, Session(connection) as session:
        brooq.enqueue(session, Job("t"))
        session.commit()
        assert told(notes) == [{("t", True): 1}]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_two_phase_transaction_never_notifies(notes: list[EnqueuedNote], driver: str) -> None:
    many = [Job("t") for _ in range(200)]
    with LocalPostgres(durable=False, settings={"max_prepared_transactions": "4"}) as server:
        engine = create_engine(server.url().set(drivername=f"postgresql+{driver}"))
        metadata.create_all(engine)
        with listening(server.url()) as heard:
            with Session(engine, twophase=True) as session:
                brooq.enqueue(session, Job("t", idempotency_key="K"))
                session.add(Job("t", idempotency_key="K"))
                brooq.enqueue_many(session, many)
                session.prepare()
                session.commit()
            with Session(engine, twophase=True) as session:
                brooq.enqueue_many(session, [Job("t")])
                session.rollback()
            with engine.connect() as connection, connection.begin_twophase() as transaction:
                brooq.enqueue(connection, Job("t"))
                transaction.prepare()
                transaction.commit()
            assert heard() == []
        assert len(jobs(engine)) == 202
        engine.dispose()
    assert told(notes) == [{("t", True): 201, ("t", False): 1}, {("t", True): 1}]


# -- subscribers


def test_a_subscriber_that_fails_harms_nobody(
    engine: Engine, session: Session, notes: list[EnqueuedNote], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_note: EnqueuedNote) -> None:
        raise RuntimeError("broken subscriber")

    unsubscribe = subscribe(broken)
    with noted() as later, caplog.at_level(logging.ERROR):
        brooq.enqueue(session, Job("t"))
        session.commit()
    unsubscribe()
    brooq.enqueue(session, Job("t"))
    session.commit()

    assert len(jobs(engine)) == 2
    assert (len(notes), len(later)) == (2, 1)
    assert caplog.text.count("a subscriber failed") == 1


def test_a_commit_without_jobs_tells_nothing(session: Session, notes: list[EnqueuedNote]) -> None:
    brooq.enqueue(session, Job("t"))
    session.commit()
    session.execute(text("SELECT 1"))
    session.commit()

    assert len(notes) == 1


def test_a_subscriber_sees_the_rows(engine: Engine, session: Session) -> None:
    seen: list[int] = []
    unsubscribe = subscribe(lambda _note: seen.append(len(jobs(engine))))
    brooq.enqueue(session, Job("t"))
    event.listen(session, "after_commit", lambda _session: seen.append(-1))
    session.commit()
    unsubscribe()

    assert 1 in seen
