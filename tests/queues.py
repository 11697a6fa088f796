"""
Queues for tests: quick settings, a table of executions, and the end of every queue that a test built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.worker.connection import Transactions, short_transaction

QUICK: dict[str, Any] = {
    "workers": 4,
    "poll_interval": "50ms",
    "lease": "10s",
    "attempt_timeout": "60s",
    "max_execution_timeout": "60s",
    "backoff_base": "10ms",
    "backoff_max": "50ms",
    "max_attempts": 3,
    "reaper_period": "100ms",
    "shutdown_grace": "5s",
}

MakeQueue = Callable[..., brooq.Queue]


def quick(**settings: Any) -> brooq.Config:
    """
    Return settings that make a test quick, changed by *settings*.
    """
    return brooq.Config(**{**QUICK, **settings})


@pytest.fixture(params=["Engine", "AsyncEngine"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """
    Lets a test run twice: its queues are built on an ``Engine``, and on an ``AsyncEngine`` for the same database.
    """
    return str(request.param)


@pytest.fixture
def make_queue(request: pytest.FixtureRequest) -> Iterator[MakeQueue]:
    """
    A function that builds queues with quick settings and metrics of their own; they are closed after the test.
    """
    built: list[brooq.Queue] = []
    asyncs = "engine_kind" in request.fixturenames and request.getfixturevalue("engine_kind") == "AsyncEngine"

    def make(
        engine: Engine | AsyncEngine, *, registry: CollectorRegistry | None = None, options: Any = None, **settings: Any
    ) -> brooq.Queue:
        if asyncs and isinstance(engine, Engine):
            # Lazy: it connects to nothing unless a handler uses it.
            engine = create_async_engine(engine.url)
        queue = brooq.Queue(engine, quick(**settings), registry=registry or CollectorRegistry(), **(options or {}))
        built.append(queue)
        return queue

    yield make
    for queue in built:
        queue.close()


def on(engine: Engine) -> Transactions:
    """
    Return what lends connections of *engine* to a store.
    """
    return partial(short_transaction, engine)


def add(engine: Engine, *jobs: brooq.Job) -> list[UUID]:
    """
    Commit *jobs*, and return their ids.
    """
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add_all(jobs)
    return [job.id for job in jobs]


def states(engine: Engine) -> dict[str, int]:
    """
    Return how many jobs are in which state.
    """
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT state, count(*) FROM job GROUP BY state"))
        return {state: number for state, number in rows}  # noqa: C416 - dict() of rows isn't typed


def all_settled(engine: Engine) -> Callable[[], bool]:
    """
    Return a condition: every job is in a terminal state, and there is one.
    """

    def settled() -> bool:
        found = states(engine)
        return bool(found) and found.keys() <= {"done", "dead", "canceled"}

    return settled


def probe_table(engine: Engine) -> None:
    """
    Make the consumer's table that effects are counted in.
    """
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE probe (n int, job_id uuid, note text, at timestamptz DEFAULT now())"))


def count(engine: Engine, table: str = "probe") -> int:
    """
    Return how many rows *table* has.
    """
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
