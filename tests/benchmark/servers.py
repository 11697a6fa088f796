"""
The server of a run: one of its own, durable, or one that is given; and a fresh database for each measurement.

Asks the server for what it counts: statements, sessions, the write-ahead log. Knows contestants only by the tables
that they make and the jobs that they put in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg import sql
from sqlalchemy import URL, make_url

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.benchmark.contestants import Contestant, Stock

SERVER_SETTINGS: Final = {"shared_buffers": "1GB", "max_connections": "200"}
"""Of our own server; all others are as PostgreSQL ships them."""
SHOWN: Final = (
    "server_version",
    "shared_buffers",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "max_wal_size",
)

_LOGGED: Final = re.compile(r"LOG:  (?:statement|execute [^:]*): ")
_COUNTED: Final = """
    SELECT coalesce(sum(calls), 0) FROM pg_stat_statements JOIN pg_database ON oid = dbid
    WHERE datname = current_database() AND toplevel AND query NOT LIKE '%pg_stat_statements%'"""

Connection = psycopg.Connection[tuple[Any, ...]]


def conninfo(url: str | URL) -> str:
    """
    Return the URL as psycopg reads it.
    """
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class Database:
    """
    A database of a measurement's own, looked at from outside.
    """

    def __init__(self, url: URL, connection: Connection, log: LocalPostgres | None) -> None:
        self.url: Final = url.render_as_string(hide_password=False)
        self.connection: Final = connection
        self._own_server = log

    def put(self, statement: str) -> None:
        """
        Run *statement*, which fills tables.
        """
        self.connection.execute(statement)

    def settle_down(self) -> None:
        """
        Give the planner its statistics, and let a measurement begin with everything written.
        """
        self.connection.execute("VACUUM ANALYZE")
        self.connection.execute("CHECKPOINT")

    def connected(self) -> Connection:
        """
        Return a connection of one's own, which commits each statement by itself.
        """
        return psycopg.connect(conninfo(self.url), autocommit=True)

    def set(self, name: str, value: str) -> None:
        """
        Give a setting of the server to all that connect from now on.
        """
        database = sql.Identifier(self.connection.info.dbname)
        self.connection.execute(
            sql.SQL("ALTER DATABASE {} SET {} = {}").format(database, sql.Identifier(name), sql.Literal(value))
        )

    def is_true(self, statement: str) -> bool:
        """
        Whether *statement* returns a row.
        """
        return self.connection.execute(statement).fetchone() is not None

    def wal(self) -> int:
        """
        The write-ahead log so far, in bytes.
        """
        return self._number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")

    def sessions(self) -> int:
        """
        How many others are connected.
        """
        return self._number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def count_statements(self) -> None:
        """
        Let the server count what clients ask from now on, those that connect from now on.

        Our own server writes it into its log; another one needs ``pg_stat_statements``.
        """
        if self._own_server is None:
            with suppress(psycopg.Error):
                self.connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        else:
            self.set("log_statement", "all")

    def statements(self) -> float:
        """
        How many statements were counted, our own left out; NaN where the server doesn't count.
        """
        if self._own_server is not None:
            return len(_LOGGED.findall(self._own_server.log.read_text(errors="replace")))
        try:
            return self._number(_COUNTED)
        except psycopg.Error:
            return math.nan

    def _number(self, statement: str) -> int:
        (number,) = self.connection.execute(statement).fetchone() or (0,)
        return int(number)


class Lab:
    """
    A server, and the databases on it. What is made is dropped.

    Args:
        url: A superuser's URL of the server; ``None`` starts one.
    """

    def __init__(self, url: str | None) -> None:
        self._given = url
        self._stack = ExitStack()
        self._templates: dict[str, str] = {}
        self._prefix = f"brooq_bench_{token_hex(3)}"
        self._own: LocalPostgres | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._given is None:
                self._own = stack.enter_context(LocalPostgres(settings=SERVER_SETTINGS))
                self._url = self._own.url()
            else:
                self._url = make_url(self._given).set(drivername="postgresql+psycopg")
            self._admin = stack.enter_context(psycopg.connect(conninfo(self._url), autocommit=True))
            stack.callback(self._drop_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._stack.close()

    def settings(self) -> Mapping[str, str]:
        """
        Return what a reader of the figures has to know of the server.
        """
        shown = {name: self._admin.execute(f"SHOW {name}").fetchone() for name in SHOWN}
        return {name: str(row[0]) for name, row in shown.items() if row}

    @contextmanager
    def database(self, contestant: Contestant, stock: Mapping[Stock, int] | None = None) -> Iterator[Database]:
        """
        Open a database with the contestant's tables, and so many jobs in them.

        Args:
            contestant: Whose tables.
            stock: What is in them; made once a run for each contestant, and copied from then on.
        """
        name = f"{self._prefix}_{token_hex(3)}"
        self._create(name, self._template(contestant, stock or {}))
        url = self._url.set(database=name)
        try:
            with psycopg.connect(conninfo(url), autocommit=True) as connection:
                yield Database(url, connection, self._own)
        finally:
            self._drop(name)

    def _template(self, contestant: Contestant, stock: Mapping[Stock, int]) -> str:
        key = f"{contestant.tables} {sorted(stock.items())}"
        if key not in self._templates:
            name = f"{self._prefix}_template_{len(self._templates)}"
            self._create(name, "template0")
            try:
                self._fill(self._url.set(database=name), contestant, stock)
            except Exception:
                self._drop(name)
                raise
            self._templates[key] = name
        return self._templates[key]

    @staticmethod
    def _fill(url: URL, contestant: Contestant, stock: Mapping[Stock, int]) -> None:
        address = url.render_as_string(hide_password=False)
        contestant.set_up(address)
        for kind, count in stock.items():
            contestant.fill(address, kind, count)
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

    def _create(self, name: str, template: str) -> None:
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _drop_all(self) -> None:
        for name in self._templates.values():
            self._drop(name)
