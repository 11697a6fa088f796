"""
Behind a real PgBouncer in transaction mode: the whole worker works, and keeps nothing in a session.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.migrations import migrate
from tests.commands import RunningWorker, shown
from tests.pages import Reader
from tests.poolers import SESSIONS, Pooled, needs_pgbouncer, pgbouncer
from tests.queues import MakeQueue, all_settled, probe_table, states
from tests.servers import ROOT
from tests.waiting import eventually, row

pytestmark = needs_pgbouncer

#: What the page says, for psycopg and for asyncpg.
PSYCOPG: dict[str, Any] = {"connect_args": {"prepare_threshold": None}}
ASYNCPG: dict[str, Any] = {
    "connect_args": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
    },
    "poolclass": NullPool,
}

#: What lives in a session: of statements, as their values stand in the log.
SESSION_STATE = re.compile(
    r"^\s*(SET\s+(?!LOCAL\b|TRANSACTION\b)|RESET\b|LISTEN\b|UNLISTEN\b|PREPARE\b|DEALLOCATE\b|DISCARD\b|LOAD\b)"
    r"|\bWITH\s+HOLD\b|\bCREATE\s+(LOCAL\s+|GLOBAL\s+)?TEMP|\bpg_(try_)?advisory_(lock|unlock)\b"
    r"|\bset_config\((?!.*,\s*('t'|'on'|true)\s*\))",
    re.IGNORECASE,
)
#: What asyncpg does by itself when it looks up a type, and what PgBouncer does because it spells its encoding oddly.
ASYNCPGS_OWN = re.compile(r"set_config\('jit'|SET client_encoding=")


@pytest.fixture(scope="module")
def pooled() -> Iterator[Pooled]:
    with pgbouncer() as pooled:
        yield pooled


@pytest.fixture
def engine(pooled: Pooled) -> Iterator[Engine]:
    """
    An engine that goes past the pooler, to look and to prepare; the table is empty.
    """
    migrate(pooled.direct)
    engine = create_engine(pooled.direct)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE job; DROP TABLE IF EXISTS probe"))
    probe_table(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "is_session_state"),
    [
        ("SET search_path = shop", True),
        ("set session characteristics as transaction isolation level serializable", True),
        ("SET LOCAL lock_timeout = 5", False),
        ("SET TRANSACTION READ ONLY", False),
        ("LISTEN brooq", True),
        ("SELECT pg_try_advisory_lock('42')", True),
        ("SELECT pg_try_advisory_xact_lock('42')", False),
        ("SELECT set_config('lock_timeout', '5', 'f') AS x", True),
        ("SELECT 1, set_config('lock_timeout', '5', 't') AS x", False),
        ("CREATE TEMPORARY TABLE t (x int)", True),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", True),
        ("UPDATE job SET state = 'done'", False),
    ],
)
def test_what_counts_as_session_state(statement: str, is_session_state: bool) -> None:
    assert bool(SESSION_STATE.search(statement)) is is_session_state


def keeps_nothing(pooled: Pooled, begin: int, kind: str = "psycopg") -> None:
    """
    Fail where a statement used what lives in a session, but for what the consumer's own driver does.
    """
    statements = pooled.statements(begin)
    assert len(statements) > 100, "the log has not all statements"
    kept = {statement for _, statement in statements if SESSION_STATE.search(statement)}
    prepared = {how for how, _ in statements if how not in {"statement", "execute <unnamed>"}}
    if kind == "asyncpg":
        kept = {statement for statement in kept if not ASYNCPGS_OWN.search(statement)}
        prepared = {how for how in prepared if "__asyncpg_" not in how}
    assert (kept, prepared) == (set(), set())


@pytest.fixture
def consumers(pooled: Pooled) -> Iterator[Callable[..., Any]]:
    """
    A function that makes engines on the pooler, as a consumer would.
    """
    made: list[Engine] = []

    def make(kind: str = "psycopg", **options: Any) -> Engine | AsyncEngine:
        url = pooled.url.set(drivername=f"postgresql+{kind}")
        if kind != "psycopg":
            # A loop that has ended leaves nothing in a pool that nobody could close.
            return create_async_engine(url, **{"poolclass": NullPool, **(ASYNCPG if kind == "asyncpg" else PSYCOPG)})
        engine = create_engine(url, **(options or PSYCOPG))
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.dispose()


def produce(engine: Engine | AsyncEngine, jobs: Callable[[], list[brooq.Job]]) -> None:
    """
    Enqueue in a few transactions, in the ways that there are.
    """
    if isinstance(engine, Engine):
        for one in range(5):
            with Session(engine) as session, session.begin():
                brooq.enqueue_many(session, jobs())
                session.add(brooq.Job("plain", idempotency_key=f"key {one}"))
        return

    async def asyncs() -> None:
        for one in range(5):
            async with AsyncSession(engine) as session, session.begin():
                await brooq.aenqueue_many(session, jobs())
                session.add(brooq.Job("plain", idempotency_key=f"key {one}"))
        await engine.dispose()

    asyncio.run(asyncs())


def serve(queue: brooq.Queue, engine: Engine | AsyncEngine) -> None:
    """
    Register handlers of every kind.
    """
    failed: set[object] = set()

    @queue.handler("plain", keep_result=True)
    def plain(claim: brooq.Claim) -> int:
        claim.on_success(lambda session: session.execute(text("INSERT INTO probe (note) VALUES ('called')")))
        return 1

    @queue.handler("asynchronous")
    async def asynchronous(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job("chained"))

    @queue.handler("chained")
    def chained(claim: brooq.Claim) -> None: ...

    @queue.handler("again")
    def again(claim: brooq.Claim) -> None:
        if claim.id not in failed:
            failed.add(claim.id)
            raise brooq.RetryLater(timedelta(milliseconds=10))

    if isinstance(engine, Engine):

        @queue.handler("transactional", transactional=True)
        def transactional(claim: brooq.Claim, session: Session) -> None:
            session.execute(text("INSERT INTO probe (note) VALUES ('transactional')"))

    else:

        @queue.handler("transactional", transactional=True)
        async def atransactional(claim: brooq.Claim, session: AsyncSession) -> None:
            await session.execute(text("INSERT INTO probe (note) VALUES ('transactional')"))


def jobs() -> list[brooq.Job]:
    topics = {"plain": 20, "asynchronous": 10, "again": 5, "transactional": 10}
    return [brooq.Job(topic) for topic, number in topics.items() for _ in range(number)]


@pytest.mark.parametrize("kind", ["psycopg", "psycopg_async", "asyncpg"])
def test_the_whole_worker_works_and_keeps_nothing_in_a_session(
    make_queue: MakeQueue,
    pooled: Pooled,
    engine: Engine,
    consumers: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    worker_side = consumers(kind)
    registry = CollectorRegistry()
    queue = make_queue(
        worker_side, registry=registry, workers=6, wakeup="poll", retention_ttl_canceled="1ms", lease="2s"
    )
    serve(queue, worker_side)
    expired, old = expire_one(engine), cancel_one(engine)
    begin = len(pooled.server.log.read_text())

    with caplog.at_level(logging.WARNING), queue:
        producers = [threading.Thread(target=produce, args=(consumers(kind), jobs)) for _ in range(2)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
        eventually(lambda: states(engine) == {"done": 2 * 5 * 45 + 5 + 100 + 1}, 30.0, "not all was done")
        eventually(lambda: not exists(engine, old), message="retention deleted nothing")
        eventually(lambda: registry.get_sample_value("brooq_jobs", {"topic": "plain", "state": "pending"}) is not None)
        health = queue.health()
    queue.close()

    assert health is not None
    assert health.healthy, health
    assert [record.message for record in caplog.records if not record.message.startswith("JobFailed: again")] == []
    assert row(engine, expired)["requeues"] == 1
    with engine.connect() as connection:
        attempts = connection.execute(text("SELECT topic, max(attempts - requeues) FROM job GROUP BY topic"))
        assert dict(attempts.all()) == {"plain": 1, "asynchronous": 1, "chained": 1, "transactional": 1, "again": 2}
        notes = connection.execute(text("SELECT note, count(*) FROM probe GROUP BY note"))
        assert dict(notes.all()) == {"called": 206, "transactional": 100}
    keeps_nothing(pooled, begin, kind)


def expire_one(engine: Engine) -> Any:
    """
    Let a job be there whose worker died.
    """
    statement = """INSERT INTO job (topic, state, attempts, claimed_at, locked_by, locked_until)
    VALUES ('plain', 'processing', 1, now() - interval '1 h', 'gone', now() - interval '1 s') RETURNING id"""
    with engine.begin() as connection:
        return connection.scalar(text(statement))


def cancel_one(engine: Engine) -> Any:
    """
    Let a job be there that is over for long.
    """
    statement = """INSERT INTO job (topic, state, updated_at) VALUES ('plain', 'canceled', now() - interval '1 h')
    RETURNING id"""
    with engine.begin() as connection:
        return connection.scalar(text(statement))


def exists(engine: Engine, job_id: Any) -> bool:
    with engine.connect() as connection:
        return bool(connection.scalar(text("SELECT count(*) FROM job WHERE id = :id"), {"id": job_id}))


def test_a_cancel_reaches_the_running_handler_and_a_stop_gives_its_job_back(
    make_queue: MakeQueue, engine: Engine, consumers: Callable[..., Any]
) -> None:
    queue = make_queue(consumers(), wakeup="poll", lease="1s", shutdown_grace="0")
    causes: list[str] = []

    @queue.handler("nap")
    def nap(claim: brooq.Claim) -> None:
        try:
            claim.wait(30)
        except brooq.Interruption as cause:
            causes.append(type(cause).__name__)
            raise

    with queue:
        first, second = queue.enqueue(brooq.Job("nap")).id, queue.enqueue(brooq.Job("nap")).id
        eventually(lambda: states(engine) == {"processing": 2})
        assert queue.cancel(first)
        eventually(lambda: causes == ["LeaseLost"])

    assert causes == ["LeaseLost", "Shutdown"]
    assert (row(engine, second)["state"], row(engine, second)["attempts"]) == ("pending", 0)


def test_a_worker_left_at_listen_notices_says_so_and_works_by_polling(
    make_queue: MakeQueue,
    pooled: Pooled,
    engine: Engine,
    consumers: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Also without the setting: what a session prepared or set is no longer relied on.
    queue = make_queue(consumers(poolclass=NullPool), workers=6)
    queue.handler("t")(lambda _: None)
    start = len(pooled.server.log.read_text())

    with caplog.at_level(logging.WARNING), queue:
        eventually(lambda: "LISTEN receives nothing here (a transaction pooler?): polling instead" in caplog.text)
        caplog.clear()
        begin = len(pooled.server.log.read_text())
        for _ in range(20):
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO job (topic) SELECT 't' FROM generate_series(1, 10)"))
            eventually(all_settled(engine))
        health = queue.health()
    queue.close()

    assert states(engine) == {"done": 200}
    assert health is not None
    assert health.healthy, health
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    keeps_nothing(pooled, begin)
    # Not even before it knew: this would have stayed in a session of other clients.
    assert "plan_cache_mode" not in pooled.server.log.read_text()[start:]


def test_a_worker_whose_own_connections_go_past_the_pooler_is_woken_at_once(
    make_queue: MakeQueue, engine: Engine, consumers: Callable[..., Any]
) -> None:
    behind = consumers()
    queue = make_queue(behind, options={"worker_engine": engine}, poll_interval="1h")
    queue.handler("t")(lambda _: None)

    with queue:
        eventually(lambda: heard(engine) == 1)
        with Session(behind) as session, session.begin():
            session.add(brooq.Job("t"))
        # Its own commits it hears of anyway, so one of somebody else's.
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO job (topic) VALUES ('t')"))
            connection.execute(text("SELECT pg_notify('brooq', 't')"))
        eventually(all_settled(engine))
        eventually(lambda: states(engine) == {"done": 2})


def heard(engine: Engine) -> int:
    with engine.connect() as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify%' OR query LIKE 'LISTEN%'"
        return int(connection.execute(text(asked)).scalar_one())


SHOP = """
import os

import sqlalchemy_brooq as brooq
from sqlalchemy import create_engine

engine = create_engine(os.environ["DATABASE_URL"], connect_args={"prepare_threshold": None})
queue = brooq.Queue(engine)
queue.handler("t", transactional=True)(lambda claim, session: None)
"""


def test_the_command_works_behind_it_also_with_several_processes(
    tmp_path: Path, pooled: Pooled, engine: Engine
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    begin = len(pooled.server.log.read_text())
    with RunningWorker(
        *("shop:queue", "--processes", "2", "--workers", str(2 * SESSIONS)),
        cwd=tmp_path,
        DATABASE_URL=shown(pooled.url),
        QUEUE_WAKEUP="poll",
    ) as worker:
        worker.announcement()
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO job (topic) SELECT 't' FROM generate_series(1, 100)"))
        eventually(lambda: states(engine) == {"done": 100}, 20.0)

        assert worker.end() == 0
        assert "ERROR" not in worker.err
    keeps_nothing(pooled, begin)


def test_the_page_about_it_works_as_it_is_written(tmp_path: Path, pooled: Pooled, engine: Engine) -> None:
    with Reader(tmp_path, pooled.url) as reader:
        reader.follow(ROOT / "docs/how-to/pgbouncer.md")
