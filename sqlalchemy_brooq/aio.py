"""
The producer's doors for async sessions: each runs the sync one inside the session's own greenlet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from sqlalchemy_brooq import producer
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.vocabulary import Enqueued

AsyncSessionLike: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection
"""What an async producer works in."""
T = TypeVar("T")


async def aenqueue(session: AsyncSessionLike, job: Job) -> Enqueued:
    """
    `enqueue` in the transaction of an async session.
    """
    return await run("aenqueue", session, lambda inner: producer.enqueue(inner, job))


async def aenqueue_many(session: AsyncSessionLike, jobs: Iterable[Job]) -> list[Enqueued]:
    """
    `enqueue_many` in the transaction of an async session.
    """
    return await run("aenqueue_many", session, lambda inner: producer.enqueue_many(inner, jobs))


async def acancel(session: AsyncSessionLike, job_id: UUID | str) -> bool:
    """
    `cancel` in the transaction of an async session.
    """
    return await run("acancel", session, lambda inner: producer.cancel(inner, job_id))


async def areplay(session: AsyncSessionLike, job_id: UUID | str) -> Enqueued:
    """
    `replay` in the transaction of an async session.
    """
    return await run("areplay", session, lambda inner: producer.replay(inner, job_id))


async def run(door: str, session: AsyncSessionLike, function: Callable[[Any], T]) -> T:
    """
    Run the sync *function* in the greenlet of *session*, on what is inside of it; *door* names who asks.
    """
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession | AsyncConnection):
        return await session.run_sync(function)
    name = type(session).__name__
    hint = f": call {door[1:]}() instead" if isinstance(session, producer.SESSIONS) else ""
    raise TypeError(f"{door}() takes an AsyncSession, async_scoped_session or AsyncConnection, not {name}{hint}")
