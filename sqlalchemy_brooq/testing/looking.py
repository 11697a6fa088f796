"""
What was enqueued: to look at, and to assert.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, Final
from unittest.mock import ANY

from sqlalchemy import select

from sqlalchemy_brooq import payload as payloads
from sqlalchemy_brooq.aio import AsyncSessionLike
from sqlalchemy_brooq.errors import PayloadError
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.producer import SessionLike
from sqlalchemy_brooq.testing.place import Place, arun, place_of

SHOWN: Final = 20
"""Jobs that a failure shows."""
WIDTH: Final = 200
"""Characters of a payload that it shows."""


def enqueued(session: SessionLike, topic: str | None = None) -> list[Job]:
    """
    Return the jobs that the transaction of *session* sees, in the order in which they were enqueued; any state.

    Args:
        session: The test's ``Session``, ``scoped_session`` or ``Connection``; it is flushed first.
        topic: Only those of this topic.
    """
    return _enqueued(place_of("enqueued", session), topic)


async def aenqueued(session: AsyncSessionLike, topic: str | None = None) -> list[Job]:
    """
    `enqueued`, for an async session.
    """
    return await arun("aenqueued", session, lambda place: _enqueued(place, topic))


def assert_enqueued(
    session: SessionLike, topic: str, payload: Any = ANY, key: str | None = ANY, *, count: int | None = None
) -> Job:
    """
    Return the first job that was enqueued like this; fail, and show what was enqueued instead, if there is none.

    Args:
        session: As for `enqueued`.
        topic: Its topic.
        payload: Its payload. ``unittest.mock.ANY`` matches whatever stands in its place, also deep within.
        key: Its idempotency key; ``None`` means that it has none.
        count: How many there must be, exactly; at least one if not given.

    Raises:
        AssertionError: There is none, or another number.
        ValueError: *count* is less than 1; `assert_not_enqueued` is for none.
    """
    __tracebackhide__ = True
    return _Wanted(topic, payload, key).among(enqueued(session), count)


async def aassert_enqueued(
    session: AsyncSessionLike, topic: str, payload: Any = ANY, key: str | None = ANY, *, count: int | None = None
) -> Job:
    """
    `assert_enqueued`, for an async session.
    """
    __tracebackhide__ = True
    return _Wanted(topic, payload, key).among(await aenqueued(session), count)


def assert_not_enqueued(session: SessionLike, topic: str, payload: Any = ANY, key: str | None = ANY) -> None:
    """
    Fail, and show them, if there are jobs like this; otherwise as `assert_enqueued`.
    """
    __tracebackhide__ = True
    _Wanted(topic, payload, key).not_among(enqueued(session))


async def aassert_not_enqueued(
    session: AsyncSessionLike, topic: str, payload: Any = ANY, key: str | None = ANY
) -> None:
    """
    `assert_not_enqueued`, for an async session.
    """
    __tracebackhide__ = True
    _Wanted(topic, payload, key).not_among(await aenqueued(session))


def _enqueued(place: Place, topic: str | None) -> list[Job]:
    query = select(Job).order_by(Job.created_at, Job.id)
    if topic is not None:
        query = query.where(Job.topic == topic)
    with place.session() as session:
        return list(session.scalars(query, execution_options={"populate_existing": True}))


class _Wanted:
    """
    What a job must be like.
    """

    def __init__(self, topic: str, payload: Any, key: str | None) -> None:
        self._topic = topic
        self._payload = payload if payload is ANY else _as_stored(payload)
        self._key = key

    def among(self, jobs: Sequence[Job], count: int | None) -> Job:
        """
        Return the first of *jobs* that is like it.
        """
        __tracebackhide__ = True
        if count is not None and count < 1:
            raise ValueError(f"count is {count}: 1 or more, or use assert_not_enqueued() for none")
        found = [job for job in jobs if self._is(job)]
        if not found:
            raise AssertionError("\n".join([f"no job was enqueued of {self}", *_instead(self._topic, jobs)]))
        if count not in {None, len(found)}:
            text = f"{len(found)}, not {count}, jobs were enqueued of {self}"
            raise AssertionError("\n".join([text, *_instead(self._topic, jobs)]))
        return found[0]

    def not_among(self, jobs: Sequence[Job]) -> None:
        """
        Fail if one of *jobs* is like it.
        """
        __tracebackhide__ = True
        found = [job for job in jobs if self._is(job)]
        if found:
            raise AssertionError("\n".join([f"there is a job of {self}", *_lines(found)]))

    def _is(self, job: Job) -> bool:
        return bool(job.topic == self._topic and self._payload == job.payload and self._key == job.idempotency_key)

    def __str__(self) -> str:
        payload = f" with payload {self._payload!r}" if self._payload is not ANY else ""
        key = f" with key {self._key!r}" if self._key is not ANY else ""
        return f"topic {self._topic!r}{payload}{key}"


def _as_stored(payload: Any) -> Any:
    """
    Return *payload* as a job would have it back; what JSON doesn't know, such as ``ANY``, stays as it is.
    """
    try:
        return payloads.copied(payload)
    except PayloadError:
        return payload


def _instead(topic: str, jobs: Sequence[Job]) -> Iterator[str]:
    """
    Yield lines that say what was enqueued, of the same topic first.
    """
    if not jobs:
        yield "nothing was enqueued at all"
        return
    yield "enqueued were:"
    yield from _lines(sorted(jobs, key=lambda job: job.topic != topic))


def _lines(jobs: Sequence[Job]) -> Iterator[str]:
    short = reprlib.Repr()
    short.maxstring = short.maxother = WIDTH
    short.maxdict = short.maxlist = SHOWN
    for job in jobs[:SHOWN]:
        key = f"  key {job.idempotency_key!r}" if job.idempotency_key is not None else ""
        yield f"  {job.topic}  {short.repr(job.payload)}{key}  {job.state}"
    if len(jobs) > SHOWN:
        yield f"  and {len(jobs) - SHOWN} more"
