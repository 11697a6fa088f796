"""
What was rolled back, in any way: the objects are as they were, and can be added again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from tests.consumer import Order, committed, keyed
from tests.recording import jobs


@pytest.fixture
def session(shop: Engine) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


@pytest.fixture(params=["rollback", "close", "savepoint", "released savepoint", "failed flush"])
def undone(request: pytest.FixtureRequest, session: Session) -> Callable[[Callable[[], None]], None]:
    """
    Every way in which what was done in a session comes to nothing.
    """

    def undo(work: Callable[[], None]) -> None:
        if request.param == "savepoint":
            with session.begin_nested() as savepoint:
                work()
                savepoint.rollback()
        elif request.param == "released savepoint":
            with session.begin_nested() as savepoint:
                with session.begin_nested():
                    work()
                savepoint.rollback()
        elif request.param == "failed flush":
            work()
            session.add_all([Order(id=1), Order(id=1)])
            with pytest.raises(Exception, match=r"orders_pkey|conflicts with persistent"):
                session.flush()
            session.rollback()
        else:
            work()
            getattr(session, request.param)()

    return undo


@pytest.mark.filterwarnings("ignore:New instance .* with identity key:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("door", ["add", "enqueue"])
@pytest.mark.parametrize("exists", [False, True])
def test_what_was_rolled_back_is_inserted_when_added_again(
    shop: Engine, session: Session, undone: Callable[..., None], door: str, exists: bool
) -> None:
    there = committed(shop) if exists else None
    plain, unique, twin = Job("t", 1, delay="1h"), keyed(payload=2), keyed(payload=3)
    given = [plain, unique, twin]
    before = [{**job.__dict__, "_sa_instance_state": None} for job in given]

    def work() -> None:
        if door == "add":
            session.add_all(given)
            session.flush()
        else:
            for job in given:
                brooq.enqueue(session, job)
        assert plain.state == "pending"
        assert twin.created is False
        session.expire_all()

    undone(work)

    assert all(inspect(job).transient for job in given)
    assert [{**job.__dict__, "_sa_instance_state": None} for job in given] == before
    session.add_all(given)
    session.commit()
    if exists:
        with shop.begin() as connection:
            connection.execute(text("DELETE FROM job WHERE id = :id"), {"id": there})
        assert [one.payload for one in jobs(shop)] == [1]
    else:
        assert [(one.id, one.payload) for one in jobs(shop)] == [(plain.id, 1), (unique.id, 2)]


def test_a_released_savepoint_is_no_rollback(shop: Engine, session: Session) -> None:
    with session.begin_nested():
        job = keyed()
        session.add(job)
    with session.begin_nested() as other:
        session.add(Job("t"))
        session.flush()
        other.rollback()

    assert inspect(job).persistent
    session.commit()
    assert [one.id for one in jobs(shop)] == [job.id]


def test_a_relationship_survives_the_rollback_of_its_job(shop: Engine, session: Session) -> None:
    order = Order(job=keyed())
    session.add(order)
    session.flush()
    session.rollback()

    session.add(order)
    session.commit()

    assert order.job_id == jobs(shop)[0].id


def test_on_an_autocommit_engine_the_retry_finds_what_was_written(database_url: Any) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        job = Job("t")
        session.add(job)
        session.flush()
        session.rollback()  # in vain
        session.add(job)
        session.commit()
        assert job.created is False

    assert len(jobs(engine)) == 1
    engine.dispose()
