"""
The run's one server: started when the first test needs it, used by every process of the run, and ended with the run.

It is the one that ``BROOQ_TEST_DATABASE_URL`` names (a superuser's or CREATEDB role's URL), or an embedded one. Where
there is neither, tests fail: none is skipped for want of a database. Under pytest-xdist the process that starts the
workers starts it as well, and tells them its address. It lives no longer than that process, however that ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_hex
from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from pytest_postgresql import factories
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from sqlalchemy_brooq.demo.postgres import LocalPostgres, PostgresUnavailable
from tests.databases import Admin

SERVER_VARIABLE: Final = "BROOQ_TEST_DATABASE_URL"

_SERVER: Final = pytest.StashKey[LocalPostgres]()
_RUN: Final = pytest.StashKey[str]()
_TOLD_SERVER: Final = "brooq_server"
_TOLD_RUN: Final = "brooq_run"


def server_of(config: pytest.Config) -> URL:
    """
    Return the address of the run's server, started if it has to be.
    """
    if given := os.environ.get(SERVER_VARIABLE):
        return _checked(given)
    if told := _told(config).get(_TOLD_SERVER):
        return make_url(told)
    try:
        return _started(config).url()
    except PostgresUnavailable as error:
        raise _failure(f"the tests need a PostgreSQL, or its URL in {SERVER_VARIABLE}: {error}") from None


def name_in_run(config: pytest.Config, what: str) -> str:
    """
    Return the name of a database that the whole run shares; two runs may share a server.
    """
    run = _told(config).get(_TOLD_RUN) or config.stash.setdefault(_RUN, token_hex(3))
    return f"brooq_test_{run}_{what}"


def conninfo(url: URL) -> str:
    """
    Return *url* as psycopg itself takes it.
    """
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _told(config: pytest.Config) -> dict[str, Any]:
    """
    Return what the process that started this worker told it; nothing where there are no workers.
    """
    told: dict[str, Any] = getattr(config, "workerinput", {})
    return told


def _started(config: pytest.Config) -> LocalPostgres:
    if _SERVER not in config.stash:
        config.stash[_SERVER] = LocalPostgres(durable=False, settings={"max_connections": "200"}).start()
    return config.stash[_SERVER]


def _checked(given: str) -> URL:
    try:
        url = make_url(given).set(drivername="postgresql+psycopg")
        psycopg.connect(conninfo(url)).close()
    except (ArgumentError, psycopg.Error) as error:
        raise _failure(f"{SERVER_VARIABLE} is set, but names no PostgreSQL that can be reached: {error}") from None
    return url


def _failure(text: str) -> BaseException:
    return pytest.fail.Exception(text, pytrace=False)


def load_schema(host: str, port: int, user: str, dbname: str, password: str | None, **_: object) -> None:
    """
    Give a database our schema: called once, for the template of every test's database.
    """
    from sqlalchemy_brooq.migrations import migrate

    url = URL.create("postgresql+psycopg", user, password, database=dbname, query={"host": host, "port": str(port)})
    migrate(url)


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> URL:
    """
    The run's server; no test should stop it or change its settings.
    """
    return server_of(request.config)


@pytest.fixture(scope="session")
def server_address(server_url: URL) -> SimpleNamespace:
    """
    The run's server, in the words of pytest-postgresql.
    """
    with psycopg.connect(conninfo(server_url)) as connection:
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
    with psycopg.connect(conninfo(server_url), autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """
    Tell a worker of pytest-xdist, before it starts, what its run has.
    """
    node.workerinput[_TOLD_RUN] = node.config.stash.setdefault(_RUN, token_hex(3))
    if not os.environ.get(SERVER_VARIABLE):
        with suppress(PostgresUnavailable):  # then each worker tries, and its tests say why they fail
            node.workerinput[_TOLD_SERVER] = _started(node.config).url().render_as_string(hide_password=False)


def pytest_unconfigure(config: pytest.Config) -> None:
    """
    End what the run started; a server that was there before loses what the run left on it.
    """
    if server := config.stash.get(_SERVER, None):
        server.close()
    elif _RUN in config.stash and (given := os.environ.get(SERVER_VARIABLE)):
        with suppress(pytest.fail.Exception), psycopg.connect(conninfo(_checked(given)), autocommit=True) as connection:
            _drop_shared(connection, name_in_run(config, ""))


def _drop_shared(connection: psycopg.Connection[Any], prefix: str) -> None:
    for (name,) in connection.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [prefix]):
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
