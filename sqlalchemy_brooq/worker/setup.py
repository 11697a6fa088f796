"""
What a worker is made from: where its connections and sessions come from, what it serves, and how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.payload import Serializer
from sqlalchemy_brooq.private import json_deserializer, json_serializer
from sqlalchemy_brooq.worker.attempt import Handler
from sqlalchemy_brooq.worker.hooks import Callbacks
from sqlalchemy_brooq.worker.running import Around


@dataclass(frozen=True, slots=True)
class Sources:
    """
    Where a worker's connections and sessions come from.
    """

    engine: Engine
    """A plain engine with psycopg."""
    sessions: Callable[[], Session]
    async_sessions: Callable[[], AsyncSession] | None

    @property
    def serializer(self) -> Serializer | None:
        """
        The engine's ``json_serializer``; ``None`` means the standard library's.
        """
        return json_serializer(self.engine.dialect)

    @property
    def deserializer(self) -> Callable[[str], Any] | None:
        """
        The engine's ``json_deserializer``, likewise.
        """
        return json_deserializer(self.engine.dialect)


@dataclass(frozen=True, slots=True)
class Setup:
    """
    All that a worker is given.
    """

    sources: Sources
    config: Config
    """The queue's settings."""
    handlers: Mapping[str, Handler]
    """What to serve, by topic."""
    metrics: Metrics
    """What is counted, and what the sampler shows."""
    loop: asyncio.AbstractEventLoop | None = None
    """The consumer's running event loop for ``async def`` handlers; ``None`` makes one."""
    around: Around | None = None
    """The consumer's context manager around each handler."""
    callbacks: Callbacks = field(default_factory=dict)
    """Whom to tell of what happens to jobs."""

    @property
    def capacity(self) -> int:
        """
        How many jobs the worker holds at most, those that wait for a slot included.
        """
        return self.config.workers + self.config.prefetch
