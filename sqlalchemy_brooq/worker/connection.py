"""
Connections that belong to the engine: made like the consumer's, never taken from its pool.

Owns connecting, the isolation level and the deadline of each call. Knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, cast

from sqlalchemy import Connection, Engine, Executable, PoolProxiedConnection, event, func, select
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError, OperationalError

from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.sqlstates import OUTAGES, sqlstate
from sqlalchemy_brooq.worker.forks import cut_off
from sqlalchemy_brooq.worker.log import log

READ_COMMITTED: Final = "READ COMMITTED"
CONNECT: Final = 5
"""Seconds for which each host is tried; of itself psycopg gives one up after 130."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds between tries while the database fails: short enough to be back soon after it is."""
PASSING: Final = ("starting up", "shutting down", "recovery", "too many clients", "connection slots")
"""What a server says that refuses for now."""

Rows = Sequence[Any]


class PrivateConnection:
    """
    One connection of the engine's own; it connects when needed, and again after any error.

    It is made by a copy of the consumer's pool, so ``connect_args`` and connect events hold, and handlers
    that take every pooled connection can't take this one. After an error it is dropped, never reused:
    what a role or a server was set to before a failover would survive in it.

    Threads that share it take turns.

    Args:
        engine: The engine whose connections are imitated.
        plain: Use nothing of the session's state (for a transaction pooler): no prepared
            statements, and every call names its isolation level.
    """

    def __init__(self, engine: Engine, *, plain: bool = False) -> None:
        self._engine = engine
        self._plain = plain
        self._generic = False
        self._generic_on: Connection | None = None
        self._outdated = False
        self._turn = threading.Lock()
        self._pool = engine.pool.recreate()
        self._connection: Connection | None = None
        self._driver: Any = None
        self._connecting = 0
        event.listen(engine, "do_connect", self._limit_connect)
        self._guard = threading.Lock()
        self._due: float | None = None
        self._autocommit = False
        self._closed = False

    def rows(self, statement: Executable, parameters: Mapping[str, Any], *, limit: float) -> Rows:
        """
        Run one statement in a transaction of its own, and return all rows of its answer.

        Args:
            statement: What to run.
            parameters: Its parameters.
            limit: After so many seconds the server counts as frozen and the connection is broken off.

        Raises:
            sqlalchemy.exc.DBAPIError: The statement failed, or the deadline passed.
        """
        with self._connected(limit) as connection:
            if self._autocommit:
                return connection.execute(statement, parameters).all()
            with connection.begin():
                return connection.execute(statement, parameters).all()

    @contextlib.contextmanager
    def transaction(self, *, limit: float) -> Iterator[Connection]:
        """
        Lend the connection in a READ COMMITTED transaction that commits at the end; otherwise as `rows`.
        """
        with self._connected(limit) as connection:
            if connection.in_transaction():
                # What `rows` leaves behind: to SQLAlchemy, one that commits each statement begins a transaction, too.
                connection.rollback()
            named = connection.execution_options(isolation_level=READ_COMMITTED)
            try:
                with named.begin():
                    yield named
            except IntegrityError:  # the only error that the connection outlives
                self._commit_each(connection)
                raise
            self._commit_each(connection)

    @contextlib.contextmanager
    def driver(self, *, limit: float) -> Iterator[Any]:
        """
        Lend the psycopg connection itself, for what SQLAlchemy has no way to ask; otherwise as `rows`.
        """
        with self._connected(limit) as connection:
            yield connection.connection.driver_connection

    def expire(self, now: float) -> bool:
        """
        Break off the call that is under way if its deadline has passed; callable from any thread.
        """
        with self._guard:
            if self._due is None or now < self._due or self._connection is None:
                return False
            self._due = None
            return break_off(self._driver)

    def become_plain(self) -> None:
        """
        Use nothing of the session's state from the next call on; callable from any thread.
        """
        self._outdated, self._plain = not self._plain, True

    def plan_once(self) -> None:
        """
        From the next call on, let the server plan each prepared statement once; callable from any thread.

        For few rows a plan takes longer to make than to run, and for arrays, of which a plan of their own can tell
        the sizes, the server would make a new one each time. It is a setting of the session: for whoever has made
        sure that the session is ours alone.
        """
        self._generic = True

    def drop(self) -> None:
        """
        Throw the connection away; the next call makes a new one.
        """
        with self._guard:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.invalidate()
            with contextlib.suppress(Exception):
                connection.close()

    def cut_off(self) -> None:
        """
        Leave the connection to the parent, in a forked child. Takes no lock: a thread of the parent may have it.
        """
        with contextlib.suppress(Exception):  # it may be closed, or not be made yet
            cut_off(self._driver)

    def close(self) -> None:
        """
        Close for good; harmless when repeated.
        """
        self._closed = True
        self.drop()
        self._pool.dispose()
        with contextlib.suppress(InvalidRequestError):  # closed before
            event.remove(self._engine, "do_connect", self._limit_connect)

    @contextlib.contextmanager
    def _connected(self, limit: float) -> Iterator[Connection]:
        with self._turn:
            with self._guard:
                self._due = time.monotonic() + limit
            if self._outdated:
                self._outdated = False
                self.drop()
            try:
                connection = self._connection or self._connect()
                if self._generic and not self._plain and self._generic_on is not self._connection:
                    self._set_generic(connection)
                yield connection
            except IntegrityError:
                raise  # the server is well, and the transaction was rolled back
            except BaseException:
                self.drop()
                raise
            finally:
                with self._guard:
                    self._due = None

    def _limit_connect(self, _dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        """
        Let libpq give a host up that doesn't answer, where the consumer gave no limit of their own.
        """
        if self._connecting == threading.get_ident():
            options.setdefault("connect_timeout", CONNECT)

    def _connect(self) -> Connection:
        """
        Connect, and find out whether a statement alone is a READ COMMITTED transaction (invariant 13).
        """
        if self._closed:
            raise RuntimeError("this connection was closed")
        pooled = self._checked_out()
        connection = Connection(self._engine, connection=pooled)
        with self._guard:
            self._connection, self._driver = connection, pooled.driver_connection
        if self._closed:
            raise RuntimeError("this connection was closed while it was made")
        if self._plain:
            # Behind a transaction pooler the next statement may reach another server session.
            self._driver.prepare_threshold = None
        connection = connection.execution_options(isolation_level=READ_COMMITTED)
        with connection.begin():
            default = connection.scalar(select(func.current_setting("default_transaction_isolation")))
        self._autocommit = default == READ_COMMITTED.lower() and not self._plain
        self._commit_each(connection)
        return connection

    def _commit_each(self, connection: Connection) -> None:
        """
        Let each statement be a transaction of its own, where that is one of READ COMMITTED.
        """
        if self._autocommit:
            connection.execution_options(isolation_level="AUTOCOMMIT")

    def _checked_out(self) -> PoolProxiedConnection:
        self._connecting = threading.get_ident()
        dbapi = self._engine.dialect.loaded_dbapi
        try:
            return self._pool.connect()
        except dbapi.Error as error:
            # As an engine does it: whoever asks here is promised an exception of SQLAlchemy's.
            raise cast(DBAPIError, DBAPIError.instance(None, None, error, dbapi.Error)) from error
        finally:
            self._connecting = 0

    def _set_generic(self, connection: Connection) -> None:
        setting = select(func.set_config("plan_cache_mode", "force_generic_plan", False))
        if self._autocommit:
            connection.execute(setting)
        else:
            with connection.begin():
                connection.execute(setting)
        self._generic_on = self._connection


def break_off(driver_connection: Any) -> bool:
    """
    Shut down the socket under a psycopg connection, which wakes the thread that waits for the server.

    A cancel request would have to be answered by the very server that doesn't answer.
    """
    with contextlib.suppress(Exception):
        with socket.socket(fileno=os.dup(driver_connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        return True
    return False


def await_server(engine: Engine, check: Callable[[Connection], None]) -> None:
    """
    Run *check* once the server can be reached; until then try again and again, and say so.

    Raises:
        sqlalchemy.exc.OperationalError: The server is there and refuses, which time doesn't mend.
    """
    pauses = backing_off()
    while True:
        try:
            with short_transaction(engine) as connection:
                check(connection)
                return
        except OperationalError as error:
            if not _may_pass(error):
                raise
            pause, text = next(pauses), error_text(error).partition("\n")[0]
            log.error("the database can't be reached, next try in %.1f s: %s", pause, text)
        time.sleep(pause)


def backing_off() -> Iterator[float]:
    """
    Yield the pauses between tries while the database fails, jittered: many workers wait for the same server.
    """
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        pause = min(pause * 2, LONGEST_PAUSE)


def _may_pass(error: OperationalError) -> bool:
    """
    Tell whether what failed may go well later: by its SQLSTATE, where the server gave one.

    Of a connect that it refused, libpq hands on no more than the server's words.
    """
    state = sqlstate(error)
    if state is not None:
        return state.startswith(OUTAGES)
    text = str(error.orig)
    return "FATAL" not in text or any(passing in text for passing in PASSING)


Transactions = Callable[[], AbstractContextManager[Connection]]
"""Lends a connection in a transaction of its own, each time it is called."""
Guard = Callable[[Connection], AbstractContextManager[object]]
"""Watches over what is done with a connection."""


@contextlib.contextmanager
def short_transaction(engine: Engine, guard: Guard = contextlib.nullcontext) -> Iterator[Connection]:
    """
    Lend a connection of the consumer's pool in a READ COMMITTED transaction that commits at the end.

    After an error it doesn't go back to the pool: what a session got from its server or its role, read-only before
    a failover was over, would stay with it.

    Args:
        engine: Whose connection.
        guard: Stands around the transaction, and is left before the connection goes back to the pool.
    """
    with engine.connect() as connection, guard(connection):
        named = connection.execution_options(isolation_level=READ_COMMITTED)
        try:
            with named.begin():
                yield named
        except DBAPIError as error:
            connection.invalidate(error)
            raise
