"""
The PostgreSQL of the tests: one server for the run, and a database of its own for each test that wants one.

The server is the one that ``BROOQ_TEST_DATABASE_URL`` names (a superuser's or CREATEDB role's URL), or an embedded one,
started when the first test needs it. Where there is neither, tests fail: none is skipped for want of a database.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from secrets import token_hex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from pytest_postgresql import factories
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from sqlalchemy_brooq.demo.postgres import LocalPostgres, PostgresUnavailable

if TYPE_CHECKING:  # its home moved from one version of pytest-postgresql to the next
    from pytest_postgresql.executors import NoopExecutor

SERVER_VARIABLE = "BROOQ_TEST_DATABASE_URL"

Admin = psycopg.Connection[dict[str, Any]]


def pytest_configure() -> None:
    """
    Let the processes of the tests hear the signals that they are sent.

    What is ignored here is ignored there: SIGHUP under nohup, SIGINT in the background of a shell script.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def load_schema(host: str, port: int, user: str, dbname: str, password: str | None, **_: object) -> None:
    """
    Give a database our schema: called once, for the template of every test's database.
    """
    from sqlalchemy_brooq.migrations import migrate

    url = URL.create("postgresql+psycopg", user, password, database=dbname, query={"host": host, "port": str(port)})
    migrate(url)


@pytest.fixture(scope="session")
def server_url() -> Iterator[URL]:
    """
    The run's server; no test should stop it or change its settings.
    """
    if given := os.environ.get(SERVER_VARIABLE):
        yield _checked(given)
        return
    server = LocalPostgres(durable=False, settings={"max_connections": "200"})
    try:
        server.start()
    except PostgresUnavailable as error:
        raise _failure(f"the tests need a PostgreSQL, or its URL in {SERVER_VARIABLE}: {error}") from None
    with closing(server):
        yield server.url()


def _checked(given: str) -> URL:
    try:
        url = make_url(given).set(drivername="postgresql+psycopg")
        psycopg.connect(_conninfo(url)).close()
    except (ArgumentError, psycopg.Error) as error:
        raise _failure(f"{SERVER_VARIABLE} is set, but names no PostgreSQL that can be reached: {error}") from None
    return url


def _failure(text: str) -> BaseException:
    return pytest.fail.Exception(text, pytrace=False)


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def server_address(server_url: URL) -> SimpleNamespace:
    """
    The run's server, in the words of pytest-postgresql.
    """
    with psycopg.connect(_conninfo(server_url)) as connection:
        info = connection.info
        return SimpleNamespace(
            host=info.host,
            port=info.port,
            user=info.user,
            password=info.password or None,
            options="",
            maintenance_dbname=info.dbname,
            template_dbname=None,
        )


# A name of the run's own: two runs may share a server.
migrated = factories.postgresql_noproc(
    depends_on="server_address", dbname=f"brooq_test_{token_hex(3)}_", load=[load_schema]
)


@pytest.fixture(scope="session")
def admin(server_url: URL) -> Iterator[Admin]:
    """
    A connection to make and drop databases with.
    """
    with psycopg.connect(_conninfo(server_url), autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture
def database_url(server_url: URL, admin: Admin, migrated: NoopExecutor) -> Iterator[URL]:
    """
    A database of the test's own with our schema in it.
    """
    with fresh_database(admin, server_url, template=migrated.template_dbname) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: URL, admin: Admin) -> Iterator[URL]:
    """
    A database of the test's own with nothing in it.
    """
    with fresh_database(admin, server_url, template="template0") as url:
        yield url


@contextmanager
def fresh_database(admin: Admin, server_url: URL, template: str) -> Iterator[URL]:
    """
    Clone *template* and drop the clone afterwards; fail if a connection to it is left open.
    """
    name = f"brooq_test_{token_hex(6)}"
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield server_url.set(database=name)
        _await_no_connection(admin, name)
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _await_no_connection(admin: Admin, database: str) -> None:
    """
    Wait until the server has noticed that its clients left, some of them killed.
    """
    left = (
        "SELECT application_name, state, left(query, 200) AS query FROM pg_stat_activity"
        " WHERE datname = %s AND backend_type = 'client backend'"
    )
    deadline = time.monotonic() + 5.0
    while rows := admin.execute(left, [database]).fetchall():
        if time.monotonic() > deadline:
            pytest.fail(f"the test left {len(rows)} connections to its database open: {rows}", pytrace=False)
        time.sleep(0.01)


@pytest.fixture
def engine(database_url: URL) -> Iterator[Engine]:
    """
    An engine on the test's own database.
    """
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """
    A session on the test's own database; what it didn't commit is rolled back.
    """
    with Session(engine) as session:
        yield session


@pytest.fixture
def async_engine_url(database_url: URL) -> URL:
    """
    The test's own database, for an `AsyncEngine` that the test makes in its event loop, and disposes of there.
    """
    return database_url.set(drivername="postgresql+psycopg_async")


@pytest.fixture
def postgres_server() -> Iterator[LocalPostgres]:
    """
    A server of the test's own, to be stopped, killed and started as it likes; nothing is in it.
    """
    with LocalPostgres(durable=False) as server:
        yield server


pytest_plugins = ["tests.projects", "tests.queues", "tests.sides"]
