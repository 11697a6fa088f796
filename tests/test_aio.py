"""
The doors of async producers: the same outcomes, on the event loop and on async drivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import URL, Engine, inspect, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job, JobNotFound, PayloadError
from tests.recording import jobs, noted

Work = Callable[[AsyncEngine], Awaitable[None]]
Run = Callable[[Work], None]


@pytest.fixture(params=["psycopg_async", "asyncpg"])
def run(request: pytest.FixtureRequest, database_url: URL) -> Run:
    """
    Run a coroutine with an engine of each async driver.
    """
    url = database_url.set(drivername=f"postgresql+{request.param}")

    async def main(work: Work) -> None:
        engine = create_async_engine(url)
        try:
            await work(engine)
        finally:
            await engine.dispose()

    return lambda work: asyncio.run(main(work))


def test_a_job_comes_in_by_every_async_door(run: Run, engine: Engine) -> None:
    async def work(async_engine: AsyncEngine) -> None:
        async with AsyncSession(async_engine) as session, session.begin():
            answer = await brooq.aenqueue(session, Job("enqueued", {"n": 1}, delay="1h"))
            many = await brooq.aenqueue_many(session, (Job("many", idempotency_key=key) for key in ("a", "a", "b")))
            session.add(Job("added", idempotency_key="K"))
        assert answer.created
        assert [one.created for one in many] == [True, False, True]

    with noted() as notes:
        run(work)

    assert [one.topic for one in jobs(engine)] == ["enqueued", "many", "many", "added"]
    assert [dict(note.counts) for note in notes] == [
        {("enqueued", True): 1, ("many", True): 2, ("many", False): 1, ("added", True): 1}
    ]


def test_a_key_that_exists_leaves_an_async_transaction_usable(run: Run, engine: Engine) -> None:
    with Session(engine) as earlier, earlier.begin():
        first = brooq.enqueue(earlier, Job("t", idempotency_key="K"))
        earlier.execute(text("CREATE TABLE probe (n int PRIMARY KEY)"))

    async def work(async_engine: AsyncEngine) -> None:
        async with AsyncSession(async_engine) as session, session.begin():
            await session.execute(text("INSERT INTO probe VALUES (1)"))
            job = Job("t", idempotency_key="K")
            assert await brooq.aenqueue(session, job) == (first.id, False)
            async with session.begin_nested():
                session.add(Job("t", idempotency_key="K"))
            with pytest.raises(PayloadError):
                await brooq.aenqueue(session, Job("t", {"when": object}))
            await session.execute(text("INSERT INTO probe VALUES (2)"))
        async with async_engine.begin() as connection:
            assert await brooq.aenqueue(connection, Job("t", idempotency_key="K")) == (first.id, False)
            assert await connection.scalar(text("SELECT sum(n) FROM probe")) == 3

    run(work)

    assert [one.id for one in jobs(engine)] == [first.id]


def test_what_is_known_of_a_new_job_needs_no_await(run: Run) -> None:
    async def work(async_engine: AsyncEngine) -> None:
        async with AsyncSession(async_engine, expire_on_commit=False) as session:
            job, twin = Job("t"), Job("t", idempotency_key="K")
            session.add(job)
            await session.flush()
            await brooq.aenqueue(session, twin)
            await session.commit()
            shown = [(one.state, one.attempts, one.result, one.available_at is None) for one in (job, twin)]
            assert shown == [("pending", 0, None, False)] * 2
            assert await brooq.acancel(session, job.id)
            assert job.state == "canceled"
            assert job.updated_at is not None

        async with AsyncSession(async_engine) as session:
            known = Job("t", idempotency_key="K")
            await brooq.aenqueue(session, known)
            assert (known.id, known.topic, known.idempotency_key, known.created) == (twin.id, "t", "K", False)
            assert inspect(known).persistent

    run(work)


def test_cancel_and_replay_from_async_code(run: Run, engine: Engine) -> None:
    async def work(async_engine: AsyncEngine) -> None:
        registry = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
        job_id = (await brooq.aenqueue(registry, Job("t", [1]))).id
        assert await brooq.acancel(registry, job_id) is True
        assert await brooq.acancel(registry, str(job_id)) is False
        replay = await brooq.areplay(registry, job_id)
        assert replay.created
        assert await brooq.areplay(registry, job_id) == (replay.id, False)
        with pytest.raises(JobNotFound):
            await brooq.acancel(registry, "00000000-0000-0000-0000-000000000001")
        await registry.commit()
        await registry.remove()

    run(work)

    assert [(one.state, one.payload) for one in jobs(engine)] == [("canceled", [1]), ("pending", [1])]


def test_what_was_rolled_back_is_inserted_when_added_again(run: Run, engine: Engine) -> None:
    async def work(async_engine: AsyncEngine) -> None:
        job = Job("t", idempotency_key="K")
        async with AsyncSession(async_engine) as session:
            session.add(job)
            await session.flush()
        assert inspect(job).transient
        async with AsyncSession(async_engine) as session, session.begin():
            session.add(job)

    run(work)

    assert len(jobs(engine)) == 1


@pytest.mark.parametrize("door", [brooq.aenqueue, brooq.aenqueue_many, brooq.acancel, brooq.areplay])
def test_an_async_door_says_what_it_takes(session: Session, door: Callable[..., Any]) -> None:
    name = door.__name__
    takes = rf"{name}\(\) takes an AsyncSession, async_scoped_session or AsyncConnection, not "
    with pytest.raises(TypeError, match=rf"{takes}Session: call {name[1:]}\(\) instead"):
        asyncio.run(door(session, Job("t")))
    with pytest.raises(TypeError, match=rf"{takes}NoneType"):
        asyncio.run(door(None, Job("t")))
    sync: Callable[..., Any] = getattr(brooq, name[1:])
    with pytest.raises(TypeError, match=rf"not AsyncSession: await {name}\(\) instead"):
        sync(AsyncSession(), Job("t"))
