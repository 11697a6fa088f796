"""
Failover: the server dies under load, its standby is promoted, and the same worker goes on there.

Two real servers with streaming replication, and a URL that names both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
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
from tests.waiting import eventually, row

CATCH_UP = 5.0
"""Seconds after the promotion within which everything is as it was before."""
both = pytest.mark.parametrize("kind", ["plain", "async"])

HELD = "SELECT count(*) FROM job WHERE topic = 'held' AND state = 'processing'"
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
        first = cursor.fetchone() if cursor.description else None
        return first and first[0]


@contextmanager
def disposing(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


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
    with disposing(create_engine(pair.url, pool_pre_ping=True)) as engine:
        probe_table(engine)
        yield engine


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


class Working(Side):
    """
    A worker that handles the load's two topics, and ``held``: a job of that runs until it is let go.
    """

    def __init__(self, kind: str, engine: Engine, url: URL, **settings: str) -> None:
        # A lease of a minute, so that nothing here is the reaper's doing.
        super().__init__(kind, engine, url, {"pool_pre_ping": True}, {}, {"lease": "60s", **settings})
        self.let_go = threading.Event()
        self.transactional("inside", lambda claim, session: session.execute(PROBE, {"job_id": claim.id}))
        self.ordinary("outside", lambda claim: None)
        self.queue.register("held", self._aheld if kind == "async" else self._held)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        self.close()

    def _held(self, _: brooq.Claim) -> None:
        self.let_go.wait(60)

    async def _aheld(self, _: brooq.Claim) -> None:
        await asyncio.to_thread(self.let_go.wait, 60)

    @property
    def is_healthy(self) -> bool:
        health = self.queue.health()
        assert health is not None
        return health.healthy

    @property
    def failures(self) -> int:
        """
        In how many rounds in a row the pump has failed.
        """
        health = self.queue.health()
        assert health is not None
        return next(loop.failures for loop in health.loops if loop.name == "pump")


def count(engine: Engine, query: str) -> int:
    """
    Return the one number that *query* has; -1 while there is no server.
    """
    with suppress(OperationalError), engine.connect() as connection:
        return int(connection.scalar(text(query)))
    return -1


@both
def test_the_same_worker_goes_on_after_a_failover_under_load(pair: Pair, engine: Engine, kind: str) -> None:
    pair.synchronize()
    with Working(kind, engine, pair.url) as side, Load(pair.url, kind) as load:
        eventually(lambda: count(engine, DONE) > 200)
        assert load.refused == 0

        pair.primary.kill()
        eventually(lambda: not side.is_healthy and load.refused)
        confirmed = load.committed
        pair.promote()
        promoted = time.monotonic()
        eventually(lambda: load.committed > confirmed + 20, CATCH_UP)
        load.end()
        left = CATCH_UP - (time.monotonic() - promoted)
        eventually(lambda: count(engine, UNFINISHED) == 0, left, "it didn't catch up")
        eventually(lambda: side.is_healthy, CATCH_UP)
    # Every transaction that was confirmed, and nothing twice.
    assert count(engine, "SELECT count(*) FROM job") == 2 * load.committed
    assert count(engine, "SELECT count(*) FROM probe") == load.committed
    assert count(engine, "SELECT count(DISTINCT job_id) FROM probe") == load.committed
    assert count(engine, "SELECT sum(requeues) FROM job") == 0


@both
def test_what_the_standby_had_is_there_after_a_failover(pair: Pair, engine: Engine, kind: str) -> None:
    """
    The claim of a running job as well: its outcome is written by the worker that made it, to the new primary.
    """
    with Working(kind, engine, pair.url) as side:
        (running,) = side.add(brooq.Job("held"))
        eventually(lambda: count(engine, HELD) == 1)
        waiting = side.add(*(brooq.Job("outside", delay="1s") for _ in range(50)))
        pair.catch_up()

        pair.primary.kill()
        eventually(lambda: not side.is_healthy)
        side.let_go.set()
        pair.promote()

        eventually(lambda: count(engine, UNFINISHED) == 0, CATCH_UP, "it didn't catch up")
        assert count(engine, "SELECT count(*) FROM job") == 1 + len(waiting)
        assert row(engine, running)["attempts"] == 1
        assert count(engine, "SELECT sum(requeues) FROM job") == 0


@both
def test_a_standby_that_takes_no_writes_is_an_outage(
    pair: Pair, engine: Engine, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The URL leads to it as soon as the primary is dead, and the worker is connected long before the promotion.
    """
    with Working(kind, engine, pair.first_url) as side:
        (running,) = side.add(brooq.Job("held"))
        eventually(lambda: count(engine, HELD) == 1)
        pair.catch_up()

        pair.primary.kill()
        eventually(lambda: side.failures >= 5, message="the pump has no trouble")
        assert not side.is_healthy
        side.let_go.set()
        assert "read-only transaction" in caplog.text
        assert len(caplog.records) <= 50
        pair.promote()
        (later,) = side.add(brooq.Job("inside"))

        eventually(lambda: row(engine, later)["state"] == "done", CATCH_UP)
        eventually(lambda: row(engine, running)["state"] == "done", CATCH_UP)
        assert row(engine, running)["attempts"] == 1
        eventually(lambda: side.is_healthy, CATCH_UP)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the children of a process")
@pytest.mark.slow
def test_a_primary_that_falls_silent_is_left_behind(pair: Pair, engine: Engine) -> None:
    """
    As when its machine is cut off: nothing is refused, nothing breaks, and no answer comes.
    """
    with Working("plain", engine, pair.url, lease="3s", poll_interval="10m") as side:
        (first,) = side.add(brooq.Job("outside"))
        side.reaches(first, "done")
        pair.catch_up()
        with silent(pair.primary), disposing(create_engine(pair.standby.url())) as later:
            pair.promote()
            with Session(later, expire_on_commit=False) as session, session.begin():
                session.add(hinted := brooq.Job("outside"))  # a commit in this process: the pump looks at once

            eventually(lambda: row(later, hinted.id)["state"] == "done", 15, "the pump is stuck")
            ask(pair.standby, "INSERT INTO job (topic) VALUES ('outside'); NOTIFY brooq, 'outside'")
            done = f"{DONE} AND topic = 'outside'"
            eventually(lambda: count(later, done) == 3, 15, "the listener is stuck")
            eventually(lambda: side.is_healthy, 15, "a loop is stuck")


@contextmanager
def silent(server: LocalPostgres) -> Iterator[None]:
    """
    Freeze all processes of *server*.
    """
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    processes = [server.pid, *map(int, children)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
