"""
The queue's own doors: transactions of its own, on any engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import commits
from tests.queues import MakeQueue
from tests.recording import recorded

levels = pytest.mark.parametrize("level", ["READ COMMITTED", "AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])


@levels
def test_begin_commits_jobs_and_writes_together_or_not_at_all(
    database_url: URL, make_queue: MakeQueue, level: str
) -> None:
    engine = create_engine(database_url, isolation_level=level)
    queue = make_queue(engine)
    with queue.begin() as session:
        session.execute(text("CREATE TABLE orders (id int)"))

    with pytest.raises(ZeroDivisionError), queue.begin() as session:
        session.add(brooq.Job("t", 1))
        session.execute(text("INSERT INTO orders VALUES (1)"))
        session.flush()
        _ = 1 / 0
    with queue.begin() as session:
        session.add(brooq.Job("t", 2))
        session.execute(text("INSERT INTO orders VALUES (2)"))

    with engine.connect() as connection:
        assert connection.execute(text("SELECT payload FROM job")).scalars().all() == [2]
        assert connection.execute(text("SELECT id FROM orders")).scalars().all() == [2]
    engine.dispose()


@levels
def test_the_async_doors_do_the_same(database_url: URL, make_queue: MakeQueue, level: str) -> None:
    async def main() -> None:
        engine = create_async_engine(database_url, isolation_level=level)
        queue = make_queue(engine)
        with pytest.raises(ZeroDivisionError):
            async with queue.abegin() as session:
                session.add(brooq.Job("t", 1))
                await session.flush()
                _ = 1 / 0
        async with queue.abegin() as session:
            session.add(brooq.Job("t", 2))
        enqueued = await queue.aenqueue(brooq.Job("t", 3, idempotency_key="k"))
        again = await queue.aenqueue(brooq.Job("t", 4, idempotency_key="k"))
        assert (enqueued.created, again.created, again.id) == (True, False, enqueued.id)
        assert await queue.acancel(enqueued.id)
        assert not await queue.acancel(str(enqueued.id))
        async with engine.connect() as connection:
            payloads = await connection.execute(text("SELECT payload FROM job ORDER BY id"))
            assert payloads.scalars().all() == [2, 3]
        await engine.dispose()

    asyncio.run(main())


@levels
def test_enqueue_and_cancel_have_transactions_of_their_own(
    database_url: URL, make_queue: MakeQueue, level: str
) -> None:
    engine = create_engine(database_url, isolation_level=level)
    queue = make_queue(engine)

    first = queue.enqueue(brooq.Job("t", idempotency_key="k"))
    second = queue.enqueue(brooq.Job("t", idempotency_key="k"))

    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert queue.cancel(first.id)
    assert not queue.cancel(str(first.id))
    engine.dispose()


WATCH_LEVELS = """
    CREATE TABLE level (name text);
    CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO level VALUES (current_setting('transaction_isolation')); RETURN NEW; END $$;
    CREATE TRIGGER note_level BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION note_level();
"""


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
@pytest.mark.parametrize("default", ["read committed", "repeatable read", "serializable"])
def test_enqueue_is_read_committed_and_one_statement_where_that_is_enough(
    engine: Engine,
    database_url: URL,
    make_queue: MakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    default: str,
) -> None:
    monkeypatch.setattr(commits, "QUIET", 600.0)  # only the first one is announced
    with engine.begin() as connection:
        connection.execute(text(WATCH_LEVELS))
        connection.execute(
            text(f"ALTER DATABASE {database_url.database} SET default_transaction_isolation = '{default}'")
        )
    url = database_url.set(drivername=f"postgresql+{driver}")
    jobs = [brooq.Job("t", idempotency_key=key) for key in (None, "K", None, "K")]

    async def enqueue_async() -> tuple[list[brooq.Enqueued], list[str]]:
        own = create_async_engine(url)
        queue = make_queue(own)
        answers = [await queue.aenqueue(jobs[0])]
        with recorded(own.sync_engine) as statements:
            answers += [await queue.aenqueue(job) for job in jobs[1:]]
        await own.dispose()
        return answers, statements

    def enqueue() -> tuple[list[brooq.Enqueued], list[str]]:
        own = create_engine(url)
        queue = make_queue(own)
        answers = [queue.enqueue(jobs[0])]
        with recorded(own) as statements:
            answers += [queue.enqueue(job) for job in jobs[1:]]
        own.dispose()
        return answers, statements

    answers, statements = asyncio.run(enqueue_async()) if driver == "asyncpg" else enqueue()

    assert [answer.created for answer in answers] == [True, True, True, False]
    assert answers[3].id == answers[1].id
    assert len(statements) == 4  # three that insert, one that finds
    with engine.connect() as connection:
        assert set(connection.scalars(text("SELECT name FROM level"))) == {"read committed"}


def test_a_quiet_enqueue_opens_no_transaction(
    engine: Engine, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "QUIET", 600.0)
    queue = make_queue(engine)
    open_ones: list[bool] = []

    def note(connection: Connection, *_: Any) -> None:
        open_ones.append(not connection.connection.dbapi_connection.autocommit)  # type: ignore[union-attr]

    event.listen(engine, "before_cursor_execute", note)
    for _ in range(3):
        queue.enqueue(brooq.Job("t"))
    queue.enqueue(brooq.Job("other"))

    in_transactions = [True, True, True]  # the job, its wake-up, and once what the server's default is
    assert open_ones == [*in_transactions, False, False, True, True]


def test_the_wrong_kind_of_engine_is_told_the_right_door(database_url: URL, make_queue: MakeQueue) -> None:
    engine, async_engine = create_engine(database_url), create_async_engine(database_url)
    with pytest.raises(brooq.LifecycleError, match=r"await aenqueue\(\)"):
        make_queue(async_engine).enqueue(brooq.Job("t"))
    with pytest.raises(brooq.LifecycleError, match=r"use enqueue\(\)"):
        asyncio.run(make_queue(engine).aenqueue(brooq.Job("t")))


def test_an_engine_derived_from_a_url_that_can_not_connect_names_the_way_out(make_queue: MakeQueue) -> None:
    engine = create_async_engine("postgresql+asyncpg://u:secret@127.0.0.1:1/nowhere")
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    with pytest.raises(brooq.LifecycleError, match="worker_engine=") as caught:
        queue.start()

    assert "secret" not in str(caught.value)


def test_a_door_of_the_queues_takes_jobs_alone(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    with recorded(engine) as statements, pytest.raises(TypeError, match=r"^enqueue\(\) takes Job objects, not dict$"):
        queue.enqueue({"topic": "t"})  # type: ignore[arg-type]

    assert statements == []
