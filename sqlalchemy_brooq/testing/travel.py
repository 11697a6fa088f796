"""
Time that passes in a test.

The clock is the database's, and its ``now()`` stands still within a transaction. So it is not the clock that moves: the
times of the jobs do, the other way.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy_brooq.aio import AsyncSessionLike
from sqlalchemy_brooq.durations import DurationLike, parse_duration
from sqlalchemy_brooq.producer import SessionLike
from sqlalchemy_brooq.statements import testing as statements
from sqlalchemy_brooq.testing.place import Place, arun, place_of

ADVANCE: Final = statements.advance()


def advance(session: SessionLike, by: DurationLike) -> None:
    """
    Let time pass for all jobs: what was to happen in *by* from now is due, and a lease that was to last is over.

    Every time in every job's row moves into the past by that much. The clock stays where it is, and so do your own
    tables; a job that is enqueued later begins its life then. Nothing runs before the next `drain`.

    Args:
        session: The test's ``Session``, ``scoped_session`` or ``Connection``.
        by: A ``timedelta``, or text with a unit, such as ``"90s"``.

    Raises:
        ValueError: *by* is negative, or no duration.
    """
    _advance(place_of("advance", session), parse_duration(by))


async def aadvance(session: AsyncSessionLike, by: DurationLike) -> None:
    """
    `advance`, for an async session.
    """
    duration = parse_duration(by)
    await arun("aadvance", session, lambda place: _advance(place, duration))


def _advance(place: Place, by: timedelta) -> None:
    with place.settled() as connection:
        connection.execute(ADVANCE, {"by": by})
