"""
Failover: the server dies under load, its standby is promoted, and the same worker goes on there.

Two real servers with streaming replication, and a URL that names both.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from tests.commands import free_port
from tests.queues import probe_table
from tests.sides import Side
from tests.waiting import eventually

CATCH_UP = 5.0
"""Seconds after the promotion within which everything is as it was before."""
DONE = "SELECT count(*) FROM job WHERE state = 'done'"
UNFINISHED = "SELECT count(*) FROM job WHERE state <> 'done'"
PROBE = text("INSERT INTO probe (job_id) VALUES (:job_id)")


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

    def __enter__(self) -> Self:
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


MakeSide = Callable[[URL], Side]


@pytest.fixture(params=["plain", "async"])
def make_side(request: pytest.FixtureRequest, engine: Engine) -> Iterator[MakeSide]:
    """
    A function that starts a worker, of each kind of engine, with handlers for both of the load's topics.
    """
    with ExitStack() as closing:

        def make(url: URL) -> Side:
            # A lease of a minute, so that nothing here is the reaper's doing.
            settings = {"lease": "60s", "max_attempts": 5}
            side = Side(request.param, engine, url, {"pool_pre_ping": True}, {}, settings)
            closing.callback(side.close)
            side.transactional("inside", lambda claim, session: session.execute(PROBE, {"job_id": claim.id}))
            side.ordinary("outside", lambda claim: None)
            side.start()
            return side

        yield make


def is_healthy(side: Side) -> bool:
    health = side.queue.health()
    assert health is not None
    return health.healthy


def count(engine: Engine, query: str) -> int:
    """
    Return the one number that *query* has; -1 while there is no server.
    """
    with suppress(OperationalError), engine.connect() as connection:
        return int(connection.scalar(text(query)))
    return -1


def test_the_same_worker_goes_on_after_a_failover_under_load(pair: Pair, engine: Engine, make_side: MakeSide) -> None:
    pair.synchronize()
    side = make_side(pair.url)
    with Load(pair.url, side.kind) as load:
        eventually(lambda: count(engine, DONE) > 200)
        assert load.refused == 0

        pair.primary.kill()
        eventually(lambda: not is_healthy(side) and load.refused)
        confirmed = load.committed
        pair.promote()
        promoted = time.monotonic()
        eventually(lambda: load.committed > confirmed + 20, CATCH_UP)
    left = CATCH_UP - (time.monotonic() - promoted)
    eventually(lambda: count(engine, UNFINISHED) == 0, left, "it didn't catch up")

    eventually(lambda: is_healthy(side), CATCH_UP)
    # Every transaction that was confirmed, and nothing twice.
    assert count(engine, "SELECT count(*) FROM job") == 2 * load.committed
    assert count(engine, "SELECT count(*) FROM probe") == load.committed
    assert count(engine, "SELECT count(DISTINCT job_id) FROM probe") == load.committed
    assert count(engine, "SELECT sum(requeues) FROM job") == 0
