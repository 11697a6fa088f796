"""
Listeners of the consumer's that see, change, add and enqueue jobs while a flush is running.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, select
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from tests.consumer import Batch, Order, committed, keyed, listen
from tests.recording import jobs, recorded


@pytest.fixture
def session(shop: Engine) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


def test_listeners_of_the_consumers_find_new_jobs_and_may_change_them(shop: Engine) -> None:
    class TenantSession(Session):
        pass

    flushed: list[int] = []

    @event.listens_for(TenantSession, "before_flush")
    def stamp(session: Session, *_: Any) -> None:
        for job in [one for one in session.new if isinstance(one, Job)]:
            job.payload["tenant"] = 7
            if job.topic == "t":
                session.add(Job("audit", {}, idempotency_key=str(job.id)))

    event.listen(TenantSession, "after_flush", lambda *_: flushed.append(1))
    there = committed(shop)

    with TenantSession(shop) as session, session.begin():
        session.add_all([Job("t", {}) for _ in range(10)])
        with recorded(shop) as statements:
            session.flush()
        session.add(keyed(payload={}))  # a flush of nothing but what is there already is one all the same

    assert len(statements) == 1
    assert len(flushed) == 2
    written = [one for one in jobs(shop) if one.id != there]
    assert [one.topic for one in written] == ["t"] * 10 + ["audit"] * 11
    assert all(one.payload == {"tenant": 7} for one in written if one.topic == "t")


@pytest.mark.parametrize("name", ["before_flush", "after_flush"])
@pytest.mark.parametrize("seen", [False, True])
def test_jobs_of_a_flush_listener_are_written_once(shop: Engine, session: Session, name: str, seen: bool) -> None:
    there = committed(shop)
    made = [Job("t"), keyed(), keyed("new"), keyed("new"), Job("t", delay="1m")]
    listen(session, name, lambda: session.add_all(made))
    if seen:
        session.add(Job("first"))
    session.add(Order())

    session.commit()

    assert [job.created for job in made] == [True, False, True, False, True]
    assert {one.id for one in jobs(shop) if one.topic == "t"} == {there, made[0].id, made[2].id, made[4].id}


@pytest.mark.parametrize("name", ["before_flush", "after_flush"])
@pytest.mark.parametrize("seen", [False, True])
def test_a_flush_listener_may_enqueue(shop: Engine, session: Session, name: str, seen: bool) -> None:
    there = committed(shop)
    made = [Job("t"), keyed(), keyed("new")]
    answers: list[Any] = []
    listen(session, name, lambda: answers.extend(brooq.enqueue(session, job) for job in [*made, *made]))
    if seen:
        session.add(Job("first"))
    session.add(Order())

    session.flush()
    written = session.scalars(select(Job.id).where(Job.topic == "t")).all()
    session.commit()

    expected = [(made[0].id, True), (there, False), (made[2].id, True)]
    assert answers == [*expected, *((job_id, False) for job_id, _ in expected)]
    assert set(written) == {there, made[0].id, made[2].id} == {one.id for one in jobs(shop) if one.topic == "t"}


def test_plain_jobs_of_a_flush_listener_are_one_statement(shop: Engine, session: Session) -> None:
    made = [Job("t") for _ in range(100)]
    listen(session, "before_flush", lambda: session.add_all(made))
    session.add(Order())

    with recorded(shop) as statements:
        session.flush()

    assert len([one for one in statements if "INSERT INTO job" in one]) == 1
    session.rollback()
    assert all(inspect(job).transient and job.created is None for job in made)
    assert all("state" not in job.__dict__ for job in made)


@pytest.mark.parametrize("exists", [False, True])
def test_what_points_at_a_job_of_a_flush_listener_points_at_the_right_one(
    shop: Engine, session: Session, exists: bool
) -> None:
    if exists:
        committed(shop)
    orders, batch = [Order(), Order(), Order()], Batch()

    def make() -> None:
        for order in orders:
            order.job = keyed()
        batch.jobs.append(keyed())
        batch.jobs.append(keyed())

    listen(session, "before_flush", make)
    session.add_all([*orders, batch])
    session.commit()

    (job,) = jobs(shop)
    assert [order.job_id for order in orders] == [job.id] * 3
    assert [one.id for one in batch.jobs] == [job.id]
