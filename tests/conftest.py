"""
A database of its own for each test that wants one, on the run's one server (`tests/shared.py`).
"""

from __future__ import annotations

import compileall
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.databases import Admin, fresh_database
from tests.servers import ROOT

if TYPE_CHECKING:  # its home moved from one version of pytest-postgresql to the next
    from pytest_postgresql.executors import NoopExecutor


def pytest_configure(config: pytest.Config) -> None:
    """
    Let the processes of the tests hear the signals that they are sent, and begin with compiled modules.

    What is ignored here is ignored there: SIGHUP under nohup, SIGINT in the background of a shell script. None of
    them writes bytecode, and in a fresh checkout each would spend a fifth of its start on compiling.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(ROOT / "sqlalchemy_brooq", quiet=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Let the slow tests begin first, so that no process of the run is left with one at the end.

    Those of a module that share a fixture go to one process, or each would make the fixture for itself.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.pluginmanager.hasplugin("xdist"):  # whose marker it is
        for item in items:
            if _shares(item):
                item.add_marker(pytest.mark.xdist_group(item.location[0]))


def _shares(item: pytest.Item) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]  # of every test that is a function
    return any(found[-1].scope in {"class", "module", "package"} for found in definitions.values())


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


pytest_plugins = ["tests.shared", "tests.history", "tests.projects", "tests.queues", "tests.sides"]
