"""
What a stand-in for a queue's worker is made of: how the testing kit sees into a queue, and the only way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq.database import Database
from sqlalchemy_brooq.registry import Registry
from sqlalchemy_brooq.worker.attempt import Handler
from sqlalchemy_brooq.worker.hooks import Callbacks
from sqlalchemy_brooq.worker.running import Around


class Parts(NamedTuple):
    """
    What a stand-in for a queue's worker is made of.
    """

    engine: Engine | AsyncEngine
    """The consumer's."""
    handlers: Mapping[str, Handler]
    sessions: Callable[[], Session]
    """Makes the sessions of plain handlers, on the consumer's engine, an async one's included."""
    async_sessions: Callable[[], AsyncSession] | None
    around: Around | None
    callbacks: Callbacks
    plain_source: Callable[[], Engine]
    """Returns a plain psycopg engine for the same database."""

    @classmethod
    def of(
        cls, database: Database, registry: Registry, around: Around | None, plain_source: Callable[[], Engine]
    ) -> Self:
        """
        Return the parts of a queue that is made of these.
        """
        engine = database.engine
        return cls(
            engine,
            registry.handlers,
            database.sessions(engine.sync_engine if isinstance(engine, AsyncEngine) else engine),
            database.async_sessions(),
            around,
            registry.callbacks,
            plain_source,
        )
