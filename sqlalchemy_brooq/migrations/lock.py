"""
What a migration waits for, and for how long: another migration, and transactions that use the table.

One migration at a time in a database is a matter of a PostgreSQL advisory lock that is asked for again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy import BigInteger, Connection, func, literal, select, text
from sqlalchemy.exc import DBAPIError

from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import BrooqError
from sqlalchemy_brooq.sqlstates import LOCK_NOT_AVAILABLE, sqlstate

LOCK_KEY: Final = int.from_bytes(b"brooqmig", "big")
"""The advisory lock's key; session locks share one space of keys in a database."""

_PAUSE: Final = timedelta(milliseconds=100)
#: While a migration waits for the table, everybody else waits behind it, workers and producers.
_LONGEST_SLICE: Final = timedelta(seconds=2)
_HOLDER: Final = text(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND (classid::bigint << 32) + objid::bigint = :key"
)
_USERS: Final = text(
    "SELECT DISTINCT pid FROM pg_catalog.pg_locks JOIN pg_catalog.pg_class ON pg_class.oid = relation"
    " WHERE database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND relname = 'job' AND granted AND pid <> pg_backend_pid() ORDER BY pid"
)


class MigrationBlocked(BrooqError, TimeoutError):  # noqa: N818 - names the caller's situation
    """
    Another migration, or a transaction that uses the table, didn't end in time; nothing was changed.
    """


class Patience:
    """
    How long a migration may wait in all, from now on.
    """

    def __init__(self, total: timedelta) -> None:
        self.total = total
        self._deadline = time.monotonic() + total.total_seconds()

    @property
    def left(self) -> timedelta:
        """
        What is left of it.
        """
        return max(timedelta(seconds=self._deadline - time.monotonic()), timedelta(0))

    @property
    def slice(self) -> timedelta:
        """
        How long a statement may wait for a lock; never zero, which would mean for ever.
        """
        return max(min(self.left, _LONGEST_SLICE), timedelta(milliseconds=1))

    def try_again(self, connection: Connection, attempt: Callable[[], None]) -> None:
        """
        Call *attempt* until no lock of somebody else's is in its way; between two calls everybody else gets on.

        Raises:
            MigrationBlocked: There was one to the end.
        """
        while True:
            try:
                return attempt()
            except DBAPIError as error:
                if sqlstate(error) != LOCK_NOT_AVAILABLE:
                    raise
                if not self.left:
                    raise MigrationBlocked(_in_use(connection, self.total)) from error
            time.sleep(_PAUSE.total_seconds())


@contextmanager
def migration_lock(connection: Connection, patience: Patience) -> Iterator[None]:
    """
    Hold the lock; the connection has no open transaction when the body begins, nor afterwards.

    Asked for by polling: a session that waits inside ``pg_advisory_lock()`` has a snapshot, for which a
    ``CREATE INDEX CONCURRENTLY`` of the holder's waits in turn, and PostgreSQL ends one of the two as a deadlock.

    Raises:
        MigrationBlocked: Somebody else held the lock for all of *patience*.
    """
    while not _taken(connection):
        if not patience.left:
            raise MigrationBlocked(_blocked(connection, patience.total))
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


def _in_use(connection: Connection, timeout: timedelta) -> str:
    with connection.begin():
        pids = [str(pid) for pid in connection.scalars(_USERS)]
    return (
        f"the table job is in use (server processes: {', '.join(pids) or 'unknown'}), and no moment without was found "
        f"within {format_duration(timeout)}; nothing was changed: try again when these transactions are over, or end "
        f"one with SELECT pg_terminate_backend({pids[0] if pids else 'pid'})"
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
