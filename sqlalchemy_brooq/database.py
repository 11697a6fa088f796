"""
The consumer's database, as a queue reaches it: which engine is for whom, and sessions in transactions of our own.

Connects nothing before it is asked to. Knows no handler and no worker; an engine that it made itself is its own to
close, the consumer's never.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from sqlalchemy import Engine, StaticPool
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sqlalchemy_brooq.adoption import MAPPER
from sqlalchemy_brooq.errors import LifecycleError
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.worker.connection import READ_COMMITTED
from sqlalchemy_brooq.worker.origin import derived_engine, needs_derived
from sqlalchemy_brooq.worker.setup import Sources


class Database:
    """
    What a queue was built on.

    Args:
        engine: The consumer's.
        session_factory: The consumer's sessionmaker, of the engine's kind; ``None`` makes plain sessions.
        worker_engine: What the consumer gave for the worker's own connections, if anything.

    Raises:
        TypeError: *engine* is none, or not on PostgreSQL.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        session_factory: Callable[[], Any] | None = None,
        worker_engine: Engine | None = None,
    ) -> None:
        _check_engine(engine)
        self.engine = engine
        self._session_factory = session_factory
        self._worker_engine = worker_engine
        self._derived: Engine | None = None

    # -- for the doors

    def plain(self, name: str, other: str) -> Engine:
        """
        Return the consumer's engine for the door *name* of a queue, which needs a plain one; *other* is its async form.
        """
        if isinstance(self.engine, AsyncEngine):
            raise LifecycleError(f"queue.{name}() needs an Engine; this queue has an AsyncEngine: await {other}()")
        return self.engine

    def asyncs(self, name: str, other: str) -> AsyncEngine:
        """
        As `plain`, for a door that needs an async engine.
        """
        if not isinstance(self.engine, AsyncEngine):
            raise LifecycleError(f"queue.{name}() needs an AsyncEngine; this queue has an Engine: use {other}()")
        return self.engine

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        """
        Open a session of the consumer's engine in a transaction.
        """
        with self.sessions(self.plain("begin", "abegin"))() as session:
            _in_a_transaction(session)
            try:
                yield session
                session.commit()
            except BaseException:
                session.rollback()
                raise

    @contextlib.asynccontextmanager
    async def abegin(self) -> AsyncIterator[AsyncSession]:
        """
        As `begin`, with an async engine.
        """
        async with self._async_sessions(self.asyncs("abegin", "begin"))() as session:
            await session.run_sync(_in_a_transaction)
            try:
                yield session
                await session.commit()
            except BaseException:
                await session.rollback()
                raise

    # -- for the worker

    def sources(self, source: Engine) -> Sources:
        """
        Return where a worker has its connections and sessions from, its own connections being like those of *source*.
        """
        return Sources(source, self.sessions(source), self.async_sessions())

    def sessions(self, plain: Engine) -> Callable[[], Session]:
        """
        Return what makes the sessions of plain handlers: as the consumer's, or with an async engine on *plain*.
        """
        if isinstance(self.engine, AsyncEngine):
            return sessionmaker(plain)
        return self._session_factory or sessionmaker(self.engine)

    def async_sessions(self) -> Callable[[], AsyncSession] | None:
        """
        Return what makes the sessions of ``async def`` handlers; ``None`` with a plain engine.
        """
        return self._async_sessions(self.engine) if isinstance(self.engine, AsyncEngine) else None

    def worker_engine(self, *, plain: bool = False) -> Engine:
        """
        Return the plain psycopg engine that the worker's own connections are made like.

        Args:
            plain: An engine that has to be derived uses nothing of a session's state.
        """
        if self._worker_engine is not None:
            return self._worker_engine
        if isinstance(self.engine, Engine) and not needs_derived(self.engine):
            return self.engine
        if self._derived is None:
            self._derived = derived_engine(self.engine, plain=plain)
        return self._derived

    def refuse_one_for_all(self) -> None:
        """
        Refuse an engine that gives all threads one connection: its transactions would mix those of several handlers.
        """
        pool = (self.engine.sync_engine if isinstance(self.engine, AsyncEngine) else self.engine).pool
        if isinstance(pool, StaticPool):
            raise LifecycleError(
                f"the engine's {type(pool).__name__} gives all threads the same connection, so that one handler would"
                " commit what another one wrote: build the engine with another poolclass, such as QueuePool"
            )

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """
        Let the error of a worker that can't connect by an engine that we made say where that came from.
        """
        try:
            yield
        except SQLAlchemyError as error:
            if self._derived is None:
                raise
            raise LifecycleError(
                f"the worker's engine, derived from {self._derived.url!r}, can't connect ({error_text(error)}):"
                " give the queue one that can, worker_engine=create_engine(...)"
            ) from error

    # -- its end

    def leave_to_parent(self) -> None:
        """
        Have connections of our own in a forked child: pools are replaced, not closed, as SQLAlchemy asks for.
        """
        for engine in (self.engine, self._worker_engine, self._derived):
            if engine is not None:
                (engine.sync_engine if isinstance(engine, AsyncEngine) else engine).dispose(close=False)

    def close(self) -> None:
        """
        Let go of what is not the consumer's.
        """
        if self._derived is not None:
            self._derived.dispose()

    def _async_sessions(self, engine: AsyncEngine) -> Callable[[], AsyncSession]:
        return self._session_factory or async_sessionmaker(engine)


def _check_engine(engine: object) -> None:
    if not isinstance(engine, Engine | AsyncEngine):
        raise TypeError(f"Queue takes an Engine or an AsyncEngine, not {type(engine).__name__}")
    if engine.dialect.name != "postgresql":
        raise TypeError(f"Queue needs PostgreSQL; this engine's dialect is {engine.dialect.name}")


def at_named_level(session: Session) -> None:
    """
    Let a transaction of our own be READ COMMITTED, whatever the engine's default is (invariant 13).
    """
    session.connection(bind_arguments={"mapper": MAPPER}, execution_options={"isolation_level": READ_COMMITTED})


def _in_a_transaction(session: Session) -> None:
    """
    Begin a transaction, also where the engine's connections would commit each statement by themselves.
    """
    _begin(session)
    connection = session.connection(bind_arguments={"mapper": MAPPER})
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        session.rollback()
        _begin(session)
        at_named_level(session)


def _begin(session: Session) -> None:
    if not session.in_transaction():
        session.begin()  # a sessionmaker may have autobegin=False
