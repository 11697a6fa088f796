"""
Copies of `Job` objects, which are one job, and SQLAlchemy's bulk interfaces, which go past the doors: as documented.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import Engine, func, insert, select
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job

Door = Callable[[Session, Sequence[Job]], list[bool | None]]


def unpickled(job: Job) -> Job:
    return pickle.loads(pickle.dumps(job))  # type: ignore[no-any-return]  # noqa: S301 - pickled here


def add(session: Session, jobs: Sequence[Job]) -> list[bool | None]:
    session.add_all(jobs)
    session.flush()
    return [job.created for job in jobs]


def enqueue(session: Session, jobs: Sequence[Job]) -> list[bool | None]:
    return [brooq.enqueue(session, job).created for job in jobs]


def enqueue_many(session: Session, jobs: Sequence[Job]) -> list[bool | None]:
    return [answer.created for answer in brooq.enqueue_many(session, jobs)]


def connection(session: Session, jobs: Sequence[Job]) -> list[bool | None]:
    return [brooq.enqueue(session.connection(), job).created for job in jobs]


copiers = pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
doors = pytest.mark.parametrize("door", [add, enqueue, enqueue_many, connection])


def count(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


@copiers
@doors
@pytest.mark.parametrize("key", [None, "K"])
def test_a_copy_keeps_its_id_and_is_no_second_job(
    engine: Engine, copied: Callable[[Job], Job], door: Door, key: str | None
) -> None:
    job = Job("t", {"a": 1}, idempotency_key=key)
    twin = copied(job)

    with Session(engine) as session, session.begin():
        assert door(session, [job, twin]) == [True, False]
        assert twin.id == job.id

    assert count(engine) == 1


@copiers
@doors
def test_nor_is_one_that_is_enqueued_in_a_later_transaction(
    engine: Engine, copied: Callable[[Job], Job], door: Door
) -> None:
    job = Job("t")
    twin = copied(job)

    with Session(engine) as session, session.begin():
        assert door(session, [job]) == [True]
    with Session(engine) as session, session.begin():
        assert door(session, [twin]) == [False]

    assert count(engine) == 1


@copiers
def test_a_copy_of_an_object_that_stands_for_a_row_stands_for_it_too(
    engine: Engine, copied: Callable[[Job], Job]
) -> None:
    job = Job("t")
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add(job)
    twin = copied(job)

    with Session(engine) as session, session.begin():
        session.add(twin)
        session.flush()

    assert count(engine) == 1


# -- past the doors


def test_bulk_save_objects_writes_a_job_and_tells_nothing(engine: Engine) -> None:
    job = Job("t", idempotency_key="K")
    with Session(engine) as session, session.begin():
        session.bulk_save_objects([job])

    assert (job.created, count(engine)) == (None, 1)
    with pytest.raises(IntegrityError), Session(engine) as session, session.begin():
        session.bulk_save_objects([Job("t", idempotency_key="K")])


def test_bulk_save_objects_cant_write_a_delay(engine: Engine) -> None:
    with pytest.raises(ProgrammingError), Session(engine) as session, session.begin():
        session.bulk_save_objects([Job("t", delay="1h")])


def test_insert_checks_neither_topic_nor_key(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.execute(insert(Job), [{"topic": "No Topic", "idempotency_key": ""}])
        job = session.scalars(select(Job)).one()
        assert (job.topic, job.idempotency_key) == ("No Topic", "")

    with pytest.raises(IntegrityError), Session(engine) as session, session.begin():
        session.execute(insert(Job), [{"topic": "No Topic", "idempotency_key": ""}])
    with pytest.raises(IntegrityError), Session(engine) as session, session.begin():
        session.execute(insert(Job), [{"topic": "t", "priority": 3}])


def test_what_goes_past_the_doors_wakes_nobody(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listener:
        listener.exec_driver_sql("LISTEN brooq")
        driver = listener.connection.driver_connection
        assert driver is not None

        def woken() -> list[str]:
            return [notice.payload for notice in driver.notifies(timeout=0.2)]

        with Session(engine) as session, session.begin():
            session.bulk_save_objects([Job("t")])
            session.execute(insert(Job), [{"topic": "t"}])
        assert woken() == []
        with Session(engine) as session, session.begin():
            session.add(Job("t"))
        assert woken() == ["t"]
