"""
A queue on either kind of engine, with handlers that are written once: plain ones on an `Engine`, ``async def`` ones on
an `AsyncEngine` in a loop of the test's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.vocabulary import Label
from tests.queues import quick
from tests.waiting import eventually, row

T = TypeVar("T")
Body = Callable[..., Any]

PATIENCE = 30.0
"""Seconds after which a test that waits is taken to have failed."""


class LoopThread:
    """
    An event loop on a thread of its own, standing for the consumer's.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._loop.run_forever, name="the consumer's loop")
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run *work* in the loop, and return its answer.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        """
        End the loop and its thread.
        """
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join()
        self._loop.close()


class Side:
    """
    A queue and its engine, of one kind.

    Args:
        engine: A plain engine on the same database, to look at it from outside.
    """

    def __init__(
        self,
        kind: str,
        engine: Engine,
        url: URL,
        options: dict[str, Any],
        queue_options: dict[str, Any],
        settings: dict[str, Any],
    ) -> None:
        self.kind = kind
        self.engine = engine
        self.registry = CollectorRegistry()
        self._loop = LoopThread() if kind == "async" else None
        self.own: Engine | AsyncEngine
        if self._loop:
            self.own = create_async_engine(url.set(drivername="postgresql+psycopg_async"), **options)
        else:
            self.own = create_engine(url, **options)
        self.queue = brooq.Queue(self.own, quick(**settings), registry=self.registry, **queue_options)

    @property
    def loop_thread(self) -> threading.Thread | None:
        """
        The thread of the handlers' loop.
        """
        return self._loop.thread if self._loop else None

    @property
    def sync_engine(self) -> Engine:
        """
        The engine that events are listened for on.
        """
        return self.own.sync_engine if isinstance(self.own, AsyncEngine) else self.own

    @property
    def async_engine(self) -> AsyncEngine:
        """
        The engine, where it is an async one.
        """
        assert isinstance(self.own, AsyncEngine)
        return self.own

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run *work* in the consumer's loop, and return its answer.
        """
        assert self._loop is not None
        return self._loop.run(work)

    def transactional(self, topic: str, body: Body, **options: Any) -> None:
        """
        Register *body*, called with the claim and a `Session`, as a transactional handler.
        """

        async def handle(claim: brooq.Claim, session: AsyncSession) -> Any:
            return await session.run_sync(lambda plain: body(claim, plain))

        function = handle if self._loop else body
        self.queue.register(topic, function, brooq.HandlerOptions(transactional=True, **options))

    def ordinary(self, topic: str, body: Body, **options: Any) -> None:
        """
        Register *body*, called with the claim, as an ordinary handler.
        """

        async def handle(claim: brooq.Claim) -> Any:
            await asyncio.sleep(0)
            return body(claim)

        self.queue.register(topic, handle if self._loop else body, brooq.HandlerOptions(**options))

    def callback(self, body: Callable[[Session], Any]) -> Callable[[Any], Any]:
        """
        Return *body* as `Claim.on_success` takes it.
        """

        async def call(session: AsyncSession) -> None:
            await session.run_sync(body)

        return call if self._loop else body

    def wait(self, happened: threading.Event) -> None:
        """
        Wait in a body; an ``async def`` handler's loop goes on meanwhile.
        """
        if self._loop:
            await_only(asyncio.to_thread(happened.wait, PATIENCE))
        else:
            happened.wait(PATIENCE)

    def start(self) -> None:
        """
        Start the queue.
        """
        if self._loop:
            self._loop.run(self.queue.astart())
        else:
            self.queue.start()

    def stop(self) -> None:
        """
        Stop the queue.
        """
        if self._loop:
            self._loop.run(self.queue.astop())
        else:
            self.queue.stop()

    def close(self) -> None:
        """
        Close the queue and its engine.
        """
        if self._loop and isinstance(self.own, AsyncEngine):
            self._loop.run(self.queue.aclose())
            self._loop.run(self.own.dispose())
            self._loop.close()
        elif isinstance(self.own, Engine):
            self.queue.close()
            self.own.dispose()

    # -- looking at it from outside

    def add(self, *jobs: brooq.Job) -> list[UUID]:
        """
        Enqueue *jobs*, and return their ids.
        """
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            session.add_all(jobs)
        return [job.id for job in jobs]

    def reaches(self, job_id: UUID, *states: str) -> dict[str, Any]:
        """
        Wait until a job is in one of *states*, and return its row.
        """
        eventually(lambda: row(self.engine, job_id)["state"] in states, message=f"{row(self.engine, job_id)}")
        return dict(row(self.engine, job_id))

    def scalar(self, sql: str, **parameters: Any) -> Any:
        """
        Ask the database something.
        """
        with self.engine.connect() as connection:
            return connection.scalar(text(sql), parameters)

    def column(self, sql: str) -> list[Any]:
        """
        Ask the database for the values of one column.
        """
        with self.engine.connect() as connection:
            return list(connection.execute(text(sql)).scalars())

    def settled(self) -> bool:
        """
        Whether no attempt is in flight, and every outcome was written down.
        """
        health = self.queue.health()
        return health is not None and health.leases == 0

    def labels(self, topic: str) -> dict[str, int]:
        """
        Return how many attempts of *topic* ended with which label, once all have ended.
        """
        eventually(self.settled)
        counts = {
            label.value: self.registry.get_sample_value("brooq_settle_total", {"topic": topic, "outcome": label.value})
            for label in Label
        }
        return {label: int(count) for label, count in counts.items() if count}

    def notes(self) -> list[int]:
        """
        Return the effects that are committed.
        """
        return self.column("SELECT n FROM note ORDER BY n")

    def jobs(self, topic: str) -> list[Any]:
        """
        Return the rows of a topic in the order in which their objects were built.
        """
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT * FROM job WHERE topic = :t ORDER BY id"), {"t": topic}))


MakeSide = Callable[..., Side]


@pytest.fixture(params=["plain", "async"])
def make_side(request: pytest.FixtureRequest, engine: Engine, database_url: URL) -> Iterator[MakeSide]:
    """
    A function that builds a queue of a kind on the test's database, which has the consumer's table ``note``.
    """
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (n int PRIMARY KEY, secret text)"))
    with ExitStack() as closing:

        def make(
            *,
            level: str | None = None,
            engine_options: dict[str, Any] | None = None,
            queue_options: dict[str, Any] | None = None,
            **settings: Any,
        ) -> Side:
            options = {**(engine_options or {}), **({"isolation_level": level} if level else {})}
            side = Side(request.param, engine, database_url, options, queue_options or {}, settings)
            closing.callback(side.close)
            return side

        yield make


def write(session: Session, n: int) -> None:
    """
    Have the effect *n*.
    """
    session.execute(text("INSERT INTO note (n) VALUES (:n)"), {"n": n})


class Move(NamedTuple):
    """
    A change of a job's row.
    """

    id: UUID
    old: str
    new: str
    due: bool
    """Whether ``available_at`` changed."""


WATCH = """
    CREATE TABLE moved (n serial, id uuid, old text, new text, due boolean);
    CREATE FUNCTION record_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO moved (id, old, new, due)
            VALUES (OLD.id, OLD.state, NEW.state, OLD.available_at <> NEW.available_at);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record_move AFTER UPDATE ON job FOR EACH ROW EXECUTE FUNCTION record_move();
"""


def watch(engine: Engine) -> Callable[[], list[Move]]:
    """
    Have a trigger record every change of a job's row; return what reads the record.
    """
    with engine.begin() as connection:
        connection.execute(text(WATCH))

    def moves() -> list[Move]:
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT id, old, new, due FROM moved ORDER BY n"))
            return [Move(*one) for one in rows]

    return moves
