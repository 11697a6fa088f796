"""
Wake-ups across processes: an idle worker starts at once, and a burst of jobs is not a burst of notifications.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job, commits
from sqlalchemy_brooq.commits import Announcement
from sqlalchemy_brooq.vocabulary import CHANNEL
from tests.doors import working_in
from tests.programs import await_line, program
from tests.queues import MakeQueue, all_settled
from tests.recording import Heard, listening
from tests.waiting import eventually

Enqueue = Callable[[Job], Any]


@pytest.fixture
def heard(database_url: URL) -> Iterator[Heard]:
    with listening(database_url) as heard:
        yield heard


@pytest.fixture
def long_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Hold wake-ups back for so long that no test depends on its speed.
    """
    monkeypatch.setattr(commits, "QUIET", 600.0)


@pytest.fixture(params=["add", "enqueue", "connection", "queue"])
def enqueue(request: pytest.FixtureRequest, engine: Engine, make_queue: MakeQueue) -> Enqueue:
    """
    What enqueues a job in a transaction of its own.
    """
    return doors(engine, make_queue(engine))[request.param]


def doors(engine: Engine, queue: brooq.Queue) -> dict[str, Enqueue]:
    def by_add(job: Job) -> None:
        with Session(engine) as session:
            session.add(job)
            session.commit()

    def by_enqueue(job: Job) -> None:
        with Session(engine) as session, session.begin():
            brooq.enqueue(session, job)

    def by_connection(job: Job) -> None:
        with engine.begin() as connection:
            brooq.enqueue(connection, job)

    return {"add": by_add, "enqueue": by_enqueue, "connection": by_connection, "queue": queue.enqueue}


# -- holding back


def test_a_topic_that_was_announced_a_moment_ago_is_not_announced_again(
    enqueue: Enqueue, heard: Heard, long_quiet: None
) -> None:
    enqueue(Job("a"))
    assert heard() == ["a"]

    enqueue(Job("a"))
    enqueue(Job("b"))
    enqueue(Job("a", idempotency_key="K"))
    assert heard() == ["b"]


def test_after_the_quiet_time_it_is_announced_again(
    enqueue: Enqueue, heard: Heard, long_quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(Job("a"))
    monkeypatch.setattr(commits, "QUIET", 0.0)
    enqueue(Job("a"))

    assert heard() == ["a", "a"]


def test_what_was_rolled_back_holds_nothing_back(
    engine: Engine, session: Session, heard: Heard, long_quiet: None
) -> None:
    brooq.enqueue(session, Job("a"))
    session.rollback()
    with engine.connect() as connection:
        brooq.enqueue(connection, Job("a"))
        connection.rollback()
        savepoint = connection.begin_nested()
        brooq.enqueue(connection, Job("a"))
        savepoint.rollback()
        connection.commit()
        brooq.enqueue(connection, Job("a"))  # closed without a commit
    assert heard() == []

    brooq.enqueue(session, Job("a"))
    session.commit()
    assert heard() == ["a"]


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_commit_that_failed_holds_nothing_back(engine: Engine, heard: Heard, long_quiet: None, kind: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE probe (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))

    with pytest.raises(IntegrityError), working_in(kind, engine) as place:
        brooq.enqueue(place, Job("a"))
        place.execute(text("INSERT INTO probe VALUES (1), (1)"))
    with pytest.raises(IntegrityError), working_in(kind, engine) as place:
        place.execute(text("INSERT INTO probe VALUES (1), (1)"))
        brooq.enqueue(place, Job("a"))
    assert heard() == []

    with working_in(kind, engine) as place:
        brooq.enqueue(place, Job("a"))
    assert heard() == ["a"]


def test_a_session_that_joined_a_transaction_holds_back_from_that_ones_commit(
    engine: Engine, heard: Heard, long_quiet: None
) -> None:
    for outcome in ("rollback", "commit", "commit"):
        with engine.connect() as connection:
            transaction = connection.begin()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                session.add(Job("a"))
                session.commit()
            getattr(transaction, outcome)()

    assert heard() == ["a"]


def test_each_engine_is_one_database(engine: Engine, database_url: URL, heard: Heard, long_quiet: None) -> None:
    others = [create_engine(database_url) for _ in range(2)]
    for one in [engine, *others, engine.execution_options(stream_results=False), *others]:
        with Session(one) as session, session.begin():
            brooq.enqueue(session, Job("a"))

    assert heard() == ["a"] * 3
    for one in others:
        one.dispose()


def test_a_cancel_is_never_held_back(engine: Engine, session: Session, heard: Heard, long_quiet: None) -> None:
    ids = [brooq.enqueue(session, Job("t")).id for _ in range(3)]
    session.execute(
        text("UPDATE job SET state = 'processing', locked_by = 'w', locked_until = now(), claimed_at = now()")
    )
    session.commit()
    heard()

    for job_id in ids:
        brooq.cancel(session, job_id)
        session.commit()

    assert heard() == ["cancel:w"] * 3


def test_a_transaction_that_takes_long_to_commit_is_announced(engine: Engine, session: Session, heard: Heard) -> None:
    recent, now = commits._Recent(), time.monotonic()
    recent.note(Announcement(engine.dialect, frozenset({"quick"}), decided=now))
    recent.note(Announcement(engine.dialect, frozenset({"slow"}), decided=now - 1))

    assert recent.due(engine.dialect, {"quick", "slow", "other"}, now) == {"slow", "other"}


def test_topics_of_long_ago_are_forgotten(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "QUIET", 0.0)
    recent = commits._Recent()
    for n in range(3_000):
        recent.note(Announcement(engine.dialect, frozenset({f"topic.{n}"}), decided=time.monotonic()))

    assert len(recent._sent[engine.dialect]) <= 1_001


# -- bursts, and what a worker makes of them


def test_a_burst_of_single_jobs_sends_at_most_sixty_notifications_a_second(enqueue: Enqueue, heard: Heard) -> None:
    began = time.monotonic()
    for n in range(500):
        enqueue(Job("t", n))
    took = time.monotonic() - began

    assert 1 <= len(heard()) <= 60 * took + 1


WORKER = """
    import sys
    import sqlalchemy_brooq as brooq
    from sqlalchemy import create_engine

    queue = brooq.Queue(create_engine(sys.argv[1]), brooq.Config(poll_interval=sys.argv[2]))
    queue.register("t", lambda claim: None)
    queue.run(ready=lambda: print("ready", flush=True))
"""


def test_what_is_held_back_is_found_by_a_worker_of_another_process_before_it_polls(
    engine: Engine, database_url: URL, enqueue: Enqueue
) -> None:
    missed = 0
    with program(WORKER, database_url, "10m") as worker:
        await_line(worker, "ready")
        for _ in range(10):
            for n in range(20):  # the last ones go unannounced
                enqueue(Job("t", n))
            if not comes_true(all_settled(engine), within=1):
                missed += 1
                with engine.begin() as connection:
                    connection.execute(text(f"NOTIFY {CHANNEL}, 't'"))
                eventually(all_settled(engine))

    assert missed <= 3  # on a busy machine a commit may come too late for the look that was to find it


def comes_true(condition: Callable[[], bool], within: float) -> bool:
    with suppress(pytest.fail.Exception):
        return eventually(condition, within)
    return False


def test_an_idle_worker_of_another_process_starts_a_job_long_before_it_polls(
    engine: Engine, database_url: URL, enqueue: Enqueue
) -> None:
    with program(WORKER, database_url, "10m") as worker:
        await_line(worker, "ready")
        for n in range(3):
            time.sleep(commits.QUIET)  # so that each is announced
            enqueue(Job("t", n))
            eventually(all_settled(engine))
