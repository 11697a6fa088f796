"""
Failover: the server dies under load, its standby is promoted, and the same worker goes on there.

Two real servers with streaming replication, and a URL that names both.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from tests.commands import free_port
from tests.queues import MakeQueue, probe_table
from tests.waiting import eventually

CATCH_UP = 5.0
"""Seconds after the promotion within which everything is as it was before."""
PROBE = text("INSERT INTO probe (job_id) VALUES (:job_id)")

both = pytest.mark.parametrize("kind", ["plain", "async"])


@dataclass(frozen=True)
class Pair:
    """
    A primary and its standby.
    """

    primary: LocalPostgres
    standby: LocalPostgres
    url: URL
    """Leads to whichever of them takes writes."""
    first_url: URL
    """Leads to the primary while it lives, and then to the standby, whether that takes writes or not."""

    def synchronize(self) -> None:
        """
        From now on a commit waits until the standby has it.
        """
        ask(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        ask(self.primary, "SELECT pg_reload_conf()")
        state = "SELECT sync_state = 'sync' FROM pg_stat_replication"
        eventually(lambda: ask(self.primary, state), message="replication is not synchronous")

    def catch_up(self) -> None:
        """
        Wait until the standby has all that is committed now.
        """
        position = ask(self.primary, "SELECT pg_current_wal_flush_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        eventually(lambda: ask(self.standby, reached), message="the standby didn't catch up")

    def promote(self) -> None:
        """
        Let the standby take writes; returns when it does.
        """
        assert ask(self.standby, "SELECT pg_promote()")


def ask(server: LocalPostgres, query: str) -> Any:
    """
    Return the first value of the answer of *server*, if there is one.
    """
    with psycopg.connect(server.url().set(drivername="postgresql").render_as_string(), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchone()[0] if cursor.description else None


@pytest.fixture
def pair() -> Iterator[Pair]:
    ports = free_port(), free_port()
    options: dict[str, Any] = {"durable": False, "listen_addresses": "127.0.0.1"}
    with (
        LocalPostgres(port=ports[0], **options) as primary,
        LocalPostgres(port=ports[1], standby_of=primary, **options) as standby,
    ):
        migrate(primary.url())
        hosts = "&".join(f"host=127.0.0.1:{port}" for port in ports)
        url = make_url(f"postgresql+psycopg://postgres@/postgres?{hosts}&connect_timeout=2")
        pair = Pair(primary, standby, url.update_query_dict({"target_session_attrs": "read-write"}), url)
        pair.catch_up()
        yield pair


@pytest.fixture
def engine(pair: Pair) -> Iterator[Engine]:
    engine = create_engine(pair.url, pool_pre_ping=True)
    probe_table(engine)
    yield engine
    engine.dispose()


class Load:
    """
    A producer on a thread of its own: one transaction with two jobs after the other, until it is ended.

    A transaction whose answer it didn't get is sent again with the same keys, as it may have been lost.
    """

    def __init__(self, url: URL, kind: str) -> None:
        self._url = url
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run if kind == "plain" else self._run_async)
        self.committed = 0
        """Transactions that the server has confirmed."""
        self.refused = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._halt.set()
        self._thread.join()

    def _jobs(self) -> list[brooq.Job]:
        return [brooq.Job(topic, idempotency_key=str(self.committed)) for topic in ("inside", "outside")]

    def _run(self) -> None:
        engine = create_engine(self._url, pool_pre_ping=True)
        while not self._halt.wait(0.002):
            try:
                with Session(engine) as session, session.begin():
                    session.add_all(self._jobs())
                self.committed += 1
            except OperationalError:
                self.refused += 1
        engine.dispose()

    def _run_async(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        engine = create_async_engine(_async(self._url), pool_pre_ping=True)
        while not self._halt.is_set():
            await asyncio.sleep(0.002)
            try:
                async with AsyncSession(engine) as session, session.begin():
                    session.add_all(self._jobs())
                self.committed += 1
            except OperationalError:
                self.refused += 1
        await engine.dispose()


def _async(url: URL) -> URL:
    return url.set(drivername="postgresql+psycopg_async")


def serving(make_queue: MakeQueue, url: URL, kind: str) -> brooq.Queue:
    """
    Return a queue on an engine of *kind* with a handler that writes in the outcome's transaction, and one that doesn't.
    """
    # A minute, so that nothing here is the reaper's doing.
    settings: dict[str, Any] = {"lease": "60s", "max_attempts": 5}
    transactional = brooq.HandlerOptions(transactional=True)
    if kind == "plain":
        queue = make_queue(create_engine(url, pool_pre_ping=True), **settings)

        def inside(claim: brooq.Claim, session: Session) -> None:
            session.execute(PROBE, {"job_id": claim.id})
            claim.wait(0.005)

        queue.register("inside", inside, transactional)
    else:
        queue = make_queue(create_async_engine(_async(url), pool_pre_ping=True), **settings)

        async def ainside(claim: brooq.Claim, session: AsyncSession) -> None:
            await session.execute(PROBE, {"job_id": claim.id})
            await asyncio.sleep(0.005)

        queue.register("inside", ainside, transactional)
    queue.register("outside", lambda claim: claim.wait(0.01))
    return queue


def is_healthy(queue: brooq.Queue) -> bool:
    health = queue.health()
    assert health is not None
    return health.healthy


def count(engine: Engine, query: str) -> int:
    """
    Return the one number that *query* has; -1 while there is no server.
    """
    with suppress(OperationalError), engine.connect() as connection:
        return int(connection.scalar(text(query)))
    return -1


DONE = "SELECT count(*) FROM job WHERE state = 'done'"
UNFINISHED = "SELECT count(*) FROM job WHERE state <> 'done'"


@both
def test_the_same_worker_goes_on_after_a_failover_under_load(
    pair: Pair, engine: Engine, make_queue: MakeQueue, kind: str
) -> None:
    pair.synchronize()
    queue = serving(make_queue, pair.url, kind)
    queue.start()
    worker = queue.health().worker
    with Load(pair.url, kind) as load:
        eventually(lambda: count(engine, DONE) > 200)
        assert load.refused == 0

        pair.primary.kill()
        eventually(lambda: not is_healthy(queue) and load.refused)
        confirmed = load.committed
        pair.promote()
        promoted = time.monotonic()
        eventually(lambda: load.committed > confirmed + 20, CATCH_UP)
    left = CATCH_UP - (time.monotonic() - promoted)
    eventually(lambda: count(engine, UNFINISHED) == 0, left, "it didn't catch up")

    assert queue.health().worker == worker
    eventually(lambda: is_healthy(queue), 5)
    # Every transaction that was confirmed, and nothing twice.
    assert count(engine, "SELECT count(*) FROM job") == 2 * load.committed
    assert count(engine, "SELECT count(*) FROM probe") == load.committed
    assert count(engine, "SELECT count(DISTINCT job_id) FROM probe") == load.committed
    assert count(engine, "SELECT sum(requeues) FROM job") == 0
