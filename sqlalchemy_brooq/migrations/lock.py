"""
One migration at a time in a database: a PostgreSQL advisory lock that is asked for again and again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy import BigInteger, Connection, func, literal, select, text
from sqlalchemy.exc import DBAPIError

from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import BrooqError

LOCK_KEY: Final = int.from_bytes(b"brooqmig", "big")
"""The advisory lock's key; session locks share one space of keys in a database."""

_PAUSE: Final = timedelta(milliseconds=100)
_HOLDER: Final = text(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND (classid::bigint << 32) + objid::bigint = :key"
)


class MigrationBlocked(BrooqError, TimeoutError):  # noqa: N818 - names the caller's situation
    """
    Another migration of this database is under way, and didn't end in time; nothing was changed.
    """


@contextmanager
def migration_lock(connection: Connection, timeout: timedelta) -> Iterator[None]:
    """
    Hold the lock; the connection has no open transaction when the body begins, nor afterwards.

    Asked for by polling: a session that waits inside ``pg_advisory_lock()`` has a snapshot, for which a
    ``CREATE INDEX CONCURRENTLY`` of the holder's waits in turn, and PostgreSQL ends one of the two as a deadlock.

    Raises:
        MigrationBlocked: Somebody else held the lock for all of *timeout*.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while not _taken(connection):
        if time.monotonic() >= deadline:
            raise MigrationBlocked(_blocked(connection, timeout))
        time.sleep(_PAUSE.total_seconds())
    try:
        yield
    finally:
        _release(connection)


def _taken(connection: Connection) -> bool:
    with connection.begin():
        return bool(connection.scalar(select(func.pg_try_advisory_lock(literal(LOCK_KEY, BigInteger)))))


def _blocked(connection: Connection, timeout: timedelta) -> str:
    with connection.begin():
        pid = connection.scalar(_HOLDER.bindparams(key=LOCK_KEY))
    return (
        f"another migration of this database is under way (server process {pid or 'unknown'}) and didn't end within "
        f"{format_duration(timeout)}; nothing was changed here: wait for it, or end it with "
        f"SELECT pg_terminate_backend({pid or 'pid'})"
    )


def _release(connection: Connection) -> None:
    """
    Give the lock back, or make sure that the session ends and takes it along.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        if connection.in_transaction():
            connection.rollback()
        with connection.begin():
            connection.scalar(select(func.pg_advisory_unlock(literal(LOCK_KEY, BigInteger))))
    except DBAPIError:
        connection.invalidate()
