"""
Producers that meet over a key: one row, and the right answer for each, whatever the other one does.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import BrooqError, Enqueued, Job
from tests.databases import HERE
from tests.doors import SESSION_DOORS
from tests.recording import jobs
from tests.waiting import eventually


def keyed(key: str = "K") -> Job:
    return Job("t", idempotency_key=key)


def enqueued(engine: Engine, door: Callable[[Any, Job], Enqueued]) -> Enqueued:
    with Session(engine) as session, session.begin():
        return door(session, keyed())


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def someone_waits(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.scalar(text(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {HERE}")))


def raced(engine: Engine, pool: ThreadPoolExecutor, first: Session, door: Any) -> tuple[Enqueued, Future[Enqueued]]:
    """
    Let *first* insert a key, and another one wait for what becomes of it.
    """
    answer = brooq.enqueue(first, keyed())
    second = pool.submit(enqueued, engine, door)
    eventually(lambda: someone_waits(engine))
    return answer, second


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_when_the_first_rolls_back_the_second_has_created_the_job(
    engine: Engine, session: Session, pool: ThreadPoolExecutor, door: Any
) -> None:
    _, second = raced(engine, pool, session, door)
    session.rollback()

    assert second.result().created
    assert [one.id for one in jobs(engine)] == [second.result().id]


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_when_the_first_commits_the_second_gets_its_job(
    engine: Engine, session: Session, pool: ThreadPoolExecutor, door: Any
) -> None:
    first, second = raced(engine, pool, session, door)
    session.commit()

    assert second.result() == (first.id, False)
    assert [one.id for one in jobs(engine)] == [first.id]


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_a_row_that_is_deleted_before_it_is_found_is_written_again(engine: Engine, door: Any) -> None:
    enqueued(engine, brooq.enqueue)

    def delete_first(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "LATERAL" in statement and deletions:
            deletions.pop()
            with engine.begin() as other:
                other.execute(text("DELETE FROM job"))

    deletions = [1]
    event.listen(engine, "before_cursor_execute", delete_first)
    answer = enqueued(engine, door)

    assert answer.created
    assert [one.id for one in jobs(engine)] == [answer.id]


def test_answers_are_right_while_rows_are_deleted_all_the_time(engine: Engine, pool: ThreadPoolExecutor) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE inserted (id uuid)"))
        connection.execute(
            text(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO inserted VALUES (NEW.id); RETURN NEW; END $$"
            )
        )
        connection.execute(text("CREATE TRIGGER note AFTER INSERT ON job FOR EACH ROW EXECUTE FUNCTION note()"))
    stop = threading.Event()

    def delete() -> None:
        while not stop.is_set():
            with engine.begin() as connection:
                connection.execute(text("DELETE FROM job WHERE idempotency_key = 'K'"))

    deleting = pool.submit(delete)
    try:
        calls = [pool.submit(lambda: [enqueued(engine, brooq.enqueue) for _ in range(100)]) for _ in range(6)]
        answers = [answer for call in calls for answer in call.result()]
    finally:
        stop.set()
        deleting.result()

    with engine.connect() as connection:
        inserted = connection.scalars(text("SELECT id FROM inserted")).all()
    created = [answer.id for answer in answers if answer.created]
    assert len(answers) == 600
    assert sorted(created) == sorted(inserted)
    assert {answer.id for answer in answers} == set(inserted)


def test_a_foreign_unique_index_ends_in_an_error_and_a_usable_transaction(engine: Engine, session: Session) -> None:
    session.execute(text("CREATE UNIQUE INDEX one_a_topic ON job (topic)"))
    brooq.enqueue(session, Job("t"))

    with pytest.raises(BrooqError, match=r"neither inserted nor found.*a unique index that isn't this library's"):
        brooq.enqueue(session, Job("t"))

    session.execute(text("SELECT 1"))


def test_bulks_that_share_keys_never_deadlock(engine: Engine, pool: ThreadPoolExecutor) -> None:
    barrier = threading.Barrier(2)

    def enqueue(seed: int) -> list[Enqueued]:
        keys = [str(n) for n in range(3_000)]
        random.Random(seed).shuffle(keys)
        barrier.wait(10)
        with Session(engine) as session, session.begin():
            if seed % 2:
                return brooq.enqueue_many(session, map(keyed, keys))
            session.add_all(map(keyed, keys))
            return []

    for turn in range(3):
        calls = [pool.submit(enqueue, 2 * turn + n) for n in range(2)]
        for call in calls:
            call.result()
        assert len(jobs(engine)) == 3_000
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM job"))


@pytest.mark.parametrize("door", SESSION_DOORS)
@pytest.mark.parametrize("commits", [True, False])
def test_a_key_waits_for_an_open_change_of_its_row(
    engine: Engine, session: Session, pool: ThreadPoolExecutor, door: Any, commits: bool
) -> None:
    job_id = enqueued(engine, brooq.enqueue).id
    brooq.cancel(session, job_id)

    second = pool.submit(enqueued, engine, door)
    eventually(lambda: someone_waits(engine))
    session.commit() if commits else session.rollback()

    assert second.result() == (job_id, False)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("door", SESSION_DOORS)
def test_a_key_from_after_the_snapshot_is_the_drivers_serialization_failure(
    database_url: URL, engine: Engine, level: Any, door: Any
) -> None:
    strict = create_engine(database_url, isolation_level=level)
    with Session(strict) as session:
        session.execute(text("SELECT 1 FROM job"))
        theirs = enqueued(engine, brooq.enqueue)

        job = keyed()
        with pytest.raises(DBAPIError) as caught:
            door(session, job)
        assert caught.value.orig.sqlstate == "40001"  # type: ignore[union-attr]
        session.rollback()

        assert door(session, job) == (theirs.id, False)
    strict.dispose()


def test_cancel_waits_for_the_outcome_that_is_being_written(
    engine: Engine, session: Session, pool: ThreadPoolExecutor
) -> None:
    job_id = brooq.enqueue(session, Job("t")).id
    session.commit()
    session.execute(text("UPDATE job SET state = 'done'"))

    def cancel() -> bool:
        with Session(engine) as other, other.begin():
            return brooq.cancel(other, job_id)

    canceling = pool.submit(cancel)
    eventually(lambda: someone_waits(engine))
    session.commit()

    assert canceling.result() is False
    assert [one.state for one in jobs(engine)] == ["done"]
