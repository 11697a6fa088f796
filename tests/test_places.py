"""
Everything that a producer may work in, on every driver: the same doors, the same outcome.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import InvalidJob, Job, JobNotFound
from sqlalchemy_brooq.identity import new_id
from tests.doors import PLACES, probes, with_probe, working_in
from tests.recording import Heard, jobs, listening, noted

AsyncPlace = Callable[[AsyncEngine], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def session(engine: AsyncEngine) -> AsyncIterator[Any]:
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def savepoint(engine: AsyncEngine) -> AsyncIterator[Any]:
    async with AsyncSession(engine) as session, session.begin(), session.begin_nested():
        yield session


@asynccontextmanager
async def scoped_session(engine: AsyncEngine) -> AsyncIterator[Any]:
    registry = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    yield registry
    await registry.commit()
    await registry.remove()


@asynccontextmanager
async def connection(engine: AsyncEngine) -> AsyncIterator[Any]:
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def joined(engine: AsyncEngine) -> AsyncIterator[Any]:
    async with (
        engine.begin() as connection,
        AsyncSession(connection, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        await session.commit()


@asynccontextmanager
async def autocommit(engine: AsyncEngine) -> AsyncIterator[Any]:
    async with AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session, session.begin():
        yield session


ASYNC_PLACES: list[AsyncPlace] = [session, savepoint, scoped_session, connection, joined, autocommit]
WITH_A_JOIN = [*PLACES, "joined"]


async def said(answer: Any) -> Any:
    """
    Return what a door answers, whichever kind it is.
    """
    return await answer if inspect.isawaitable(answer) else answer


async def produce(place: Any, prefix: str) -> None:
    """
    Go through every door, and do something between: whatever a door does, the transaction is usable.
    """
    enqueue, enqueue_many, cancel, replay = (
        getattr(brooq, prefix + name) for name in ("enqueue", "enqueue_many", "cancel", "replay")
    )
    await said(place.execute(text("INSERT INTO probe VALUES (1)")))
    there = await said(enqueue(place, Job("t", idempotency_key="there")))
    assert not there.created
    new = await said(enqueue(place, Job("t", {"n": 1}, idempotency_key="new", delay="1h")))
    assert new.created
    many = [*(Job("many") for _ in range(150)), Job("t", idempotency_key="there"), Job("many", idempotency_key="K")]
    answers = await said(enqueue_many(place, (job for job in many)))
    assert [n for n, answer in enumerate(answers) if not answer.created] == [150]
    assert answers[150].id == there.id
    for refused in (enqueue, enqueue_many):
        bad = Job("t")
        bad.payload["late"] = "\x00"
        with pytest.raises(InvalidJob):
            await said(refused(place, bad if refused is enqueue else [Job("t"), bad]))
    assert await said(cancel(place, new.id))
    assert not await said(cancel(place, str(new.id)))
    with pytest.raises(JobNotFound):
        await said(cancel(place, new_id()))
    again = await said(replay(place, new.id))
    assert again.created
    assert await said(replay(place, new.id)) == (again.id, False)
    if hasattr(place, "add"):
        place.add_all([Job("added"), Job("added", idempotency_key="K"), Job("t", idempotency_key="there")])
    await said(place.execute(text("INSERT INTO probe VALUES (2)")))


@pytest.fixture
def probed(engine: Engine) -> Engine:
    with Session(engine) as session, session.begin():
        brooq.enqueue(session, Job("t", "theirs", idempotency_key="there"))
    return with_probe(engine)


def check(engine: Engine, heard: Heard, notes: list[Any], *, has_added: bool) -> None:
    """
    Check what became of `produce`.
    """
    assert probes(engine) == {1, 2}
    found = [(one.topic, one.state, one.payload) for one in jobs(engine)]
    assert found[:3] == [("t", "pending", "theirs"), ("t", "canceled", {"n": 1}), ("many", "pending", {})]
    assert [one for one in found[3:] if one[0] == "t"] == [("t", "pending", {"n": 1})]
    assert len(found) == 154 + (2 if has_added else 0)
    counts = {("t", True): 2, ("t", False): 3, ("many", True): 151}
    if has_added:
        counts |= {("t", False): 4, ("added", True): 2}
    assert [dict(note.counts) for note in notes] == [counts]
    assert set(heard()) == {"t", "many", "added"} - (set() if has_added else {"added"})


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("kind", WITH_A_JOIN)
def test_every_door_works_in_every_place(database_url: URL, probed: Engine, driver: str, kind: str) -> None:
    own = create_engine(database_url.set(drivername=f"postgresql+{driver}"))

    with listening(database_url) as heard, noted() as notes:
        with working_in(kind, own) as place:
            asyncio.run(produce(place, ""))
        check(probed, heard, notes, has_added=kind != "connection")
    own.dispose()


@pytest.mark.parametrize("driver", ["psycopg_async", "asyncpg"])
@pytest.mark.parametrize("place", ASYNC_PLACES)
def test_every_async_door_works_in_every_async_place(
    database_url: URL, probed: Engine, driver: str, place: AsyncPlace
) -> None:
    async def main() -> None:
        own = create_async_engine(database_url.set(drivername=f"postgresql+{driver}"))
        async with place(own) as inner:
            await produce(inner, "a")
        await own.dispose()

    with listening(database_url) as heard, noted() as notes:
        asyncio.run(main())
        check(probed, heard, notes, has_added=place is not connection)
