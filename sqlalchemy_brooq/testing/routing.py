"""
Lets engines take their connections from the one of a test, and opens and ends transactions for whole tests.

Owns which engine may be served by which connection. Knows pools and sessions, and of a queue only its engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, NullPool, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq.queue import Queue, parts_of
from sqlalchemy_brooq.testing.shared import Share, Shared

FAMILY: Final = frozenset({"psycopg", "psycopg_async"})
"""One driver, to SQLAlchemy: its plain connection serves an async engine too, whose awaits then wait for nothing."""
READ_COMMITTED: Final = "READ COMMITTED"

AnyEngine = Engine | AsyncEngine


class SharedPool(NullPool):
    """
    A pool of shares of one connection.
    """

    def __init__(self, shared: Shared, engine: Engine) -> None:
        super().__init__(lambda: Share(shared), dialect=engine.dialect)
        self.shared = shared

    def recreate(self) -> SharedPool:
        """
        Stay: an engine that is disposed of in the middle of a test goes on with the test's connection.
        """
        return self


def sync_engine(engine: AnyEngine) -> Engine:
    """
    Return *engine*, or the plain one inside of it.
    """
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine


def route(engines: Iterable[AnyEngine], connection: Connection) -> tuple[Shared, ExitStack]:
    """
    Let *engines* take their connections from the one of a test, until what is returned is closed.

    Args:
        engines: Those of the queue, and of its handlers.
        connection: The test's.

    Raises:
        TypeError: One of them has another driver, or the connection commits each statement.
    """
    shared = _shared(connection)
    with ExitStack() as stack:
        for engine in engines:
            sync = sync_engine(engine)
            if isinstance(sync.pool, SharedPool) and sync.pool.shared is shared:
                continue
            _check_driver(engine, connection)
            _introduce(sync, connection)
            stack.enter_context(_in_one_phase(sync.dialect))
            stack.enter_context(_told(sync))
            stack.callback(setattr, sync, "pool", sync.pool)
            sync.pool = SharedPool(shared, sync)
        return shared, stack.pop_all()


def _shared(connection: Connection) -> Shared:
    """
    Return what *connection* is a share of; or make it the one that is shared.
    """
    pooled = connection.connection
    driver = pooled.dbapi_connection
    if isinstance(driver, Share):
        driver.begin()  # around what handlers begin: the test goes on in it when they have ended
        return driver.shared
    if getattr(driver, "autocommit", False):
        raise TypeError(
            "the test's session commits each statement, and nothing could be rolled back: bind it to"
            ' engine.execution_options(isolation_level="READ COMMITTED")'
        )
    return Shared(driver)


@contextlib.contextmanager
def _told(engine: Engine) -> Iterator[None]:
    """
    Let shares know what is sent by them.
    """

    def tell(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        share = connection.connection.dbapi_connection
        if isinstance(share, Share):
            share.sending(statement)

    event.listen(engine, "before_cursor_execute", tell)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", tell)


@contextlib.contextmanager
def _in_one_phase(dialect: Dialect) -> Iterator[None]:
    """
    Let transactions of two phases have one: the test's own must not be prepared, and a savepoint can't be.
    """
    phases: dict[str, Callable[..., None]] = {
        "do_begin_twophase": lambda connection, _xid: dialect.do_begin(connection.connection),
        "do_prepare_twophase": lambda _connection, _xid: None,
        "do_commit_twophase": lambda connection, *_, **__: dialect.do_commit(connection.connection),
        "do_rollback_twophase": lambda connection, *_, **__: dialect.do_rollback(connection.connection),
    }
    for name, phase in phases.items():
        setattr(dialect, name, phase)
    try:
        yield
    finally:
        for name in phases:
            delattr(dialect, name)


def _check_driver(engine: AnyEngine, connection: Connection) -> None:
    ours, theirs = connection.dialect, engine.dialect
    if ours.is_async and not theirs.is_async:
        raise TypeError(
            f"an async session can't serve {engine!r}, whose users don't await: write a plain test, with a Session"
        )
    if ours.driver != theirs.driver and not {ours.driver, theirs.driver} <= FAMILY:
        instead = "an async test, with an AsyncSession" if theirs.is_async else f"a session on {theirs.driver}"
        raise TypeError(
            f"a session on {ours.driver} can't serve {engine!r}, which is on {theirs.driver}: use {instead}"
        )


def _introduce(engine: Engine, connection: Connection) -> None:
    """
    Let an engine that never connected learn about its server, as it would with its own first connection.
    """
    if getattr(engine.dialect, "server_version_info", None) is not None:
        return
    if engine.dialect.is_async and not connection.dialect.is_async:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(_touch(AsyncEngine(engine)))
    else:
        engine.dialect.initialize(Connection(engine, connection=connection.connection))


async def _touch(engine: AsyncEngine) -> None:
    """
    Connect once, and leave nothing in the pool: it would belong to a loop that is gone.
    """
    async with engine.connect():
        pass
    await engine.dispose()


def unjoined(session: Session) -> Session:
    """
    Let a session that a test has bound to its connection take one from the engine instead; return it.

    The engine names the isolation level of its transactions, and refuses to share them with anybody.
    """
    given = session.get_bind

    def get_bind(*arguments: Any, **options: Any) -> Engine | Connection:
        return given(*arguments, **options).engine

    session.get_bind = get_bind  # type: ignore[method-assign]
    return session


@contextlib.contextmanager
def rolled_back(queue: Queue, *engines: AnyEngine) -> Iterator[Session]:
    """
    Open a session in a transaction that is rolled back at the end, with all that the application writes meanwhile.

    Until then, each connection that the queue's engine hands out is a part of that transaction, whoever asks for it:
    a request, a fixture, a job's handler. What one of them commits, the others see, and nobody outside does.

    Args:
        queue: The application's. If it has an ``AsyncEngine`` with another driver than psycopg, use `arolled_back`.
        engines: Others that the application uses, for the same database.
    """
    parts = parts_of(queue)
    with parts.plain_source().connect() as connection:
        connection.execution_options(isolation_level=READ_COMMITTED)
        if isinstance(parts.engine, AsyncEngine):
            connection.detach()  # made for this test alone: nobody would close it in the pool that it came from
        shared, routes = route([parts.engine, *engines], connection)
        # All is taken back ahead of the session's own end, which then has nothing left to undo.
        with routes, Session(sync_engine(parts.engine)) as session, _taken_back(shared):
            yield session


@contextlib.contextmanager
def _taken_back(shared: Shared) -> Iterator[None]:
    savepoint = shared.savepoint()
    try:
        yield
    finally:
        shared.roll_back(savepoint, quietly=True)


@contextlib.asynccontextmanager
async def arolled_back(queue: Queue, *engines: AnyEngine) -> AsyncIterator[AsyncSession]:
    """
    `rolled_back`, for a queue with an ``AsyncEngine`` and tests that are ``async def``; on any driver.
    """
    engine = parts_of(queue).engine
    if not isinstance(engine, AsyncEngine):
        raise TypeError("arolled_back() is for a queue with an AsyncEngine; this one has an Engine: use rolled_back()")
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level=READ_COMMITTED)
        shared, routes = await connection.run_sync(lambda inner: route([engine, *engines], inner))
        with routes:
            async with AsyncSession(engine, expire_on_commit=False) as session:
                savepoint = await connection.run_sync(lambda _: shared.savepoint())
                try:
                    yield session
                finally:
                    await connection.run_sync(lambda _: shared.roll_back(savepoint, quietly=True))
