"""
The session, or bare connection, that a test works in: what it holds back is sent, what it has seen is seen anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session

from sqlalchemy_brooq import aio, producer
from sqlalchemy_brooq.aio import AsyncSessionLike
from sqlalchemy_brooq.book import connection_of
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.producer import SessionLike

T = TypeVar("T")


class Place:
    """
    Where a test works.

    Args:
        target: Its session, or its connection.
        is_async: Whether nothing can be loaded when it is asked for, so that it is loaded before.
    """

    def __init__(self, target: Session | Connection, *, is_async: bool) -> None:
        self.target = target
        self._is_async = is_async

    @contextlib.contextmanager
    def settled(self) -> Iterator[Connection]:
        """
        Send what the session holds back, lend its connection, and let its objects show what has changed meanwhile.
        """
        if isinstance(self.target, Connection):
            if not self.target.in_transaction():
                self.target.begin()
            yield self.target
            return
        self.target.flush()
        try:
            yield connection_of(self.target)
        finally:
            self._refresh(self.target)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """
        Lend the session; for a bare connection, one on it that leaves its transaction open.
        """
        if isinstance(self.target, Session):
            self.target.flush()
            yield self.target
        else:
            with Session(self.target, join_transaction_mode="rollback_only", expire_on_commit=False) as session:
                yield session
                session.expunge_all()

    def stored(self, job: Job | UUID | str) -> UUID:
        """
        Return the id of *job*, which is enqueued if it has no row yet.
        """
        if not isinstance(job, Job):
            return producer.checked_id(job)
        key = inspect(job).identity
        return key[0] if key is not None else producer.enqueue(self.target, job).id

    def _refresh(self, session: Session) -> None:
        if not self._is_async:
            session.expire_all()
            return
        for found in list(session.identity_map.values()):
            state = inspect(found)
            loaded = [name for name in state.mapper.attrs.keys() if name in state.dict]  # noqa: SIM118 - no dict
            try:
                if loaded:
                    session.refresh(found, loaded)
            except InvalidRequestError:  # its row is gone
                session.expire(found)


def place_of(door: str, target: SessionLike) -> Place:
    """
    Return where *target* works; *door* names the function that was called with it.
    """
    return Place(producer.target_of(door, target), is_async=False)


async def arun(door: str, target: AsyncSessionLike, work: Callable[[Place], T]) -> T:
    """
    Do sync *work* where *target* works, in its greenlet.
    """
    return await aio.run(door, target, lambda inner: work(Place(inner, is_async=True)))
