"""
A database of its own for each test that wants one, on the run's one server (`tests/shared.py`).
"""

from __future__ import annotations

import compileall
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.databases import Admin, fresh_database
from tests.servers import ROOT

# In the tests' own process, pytest's setting "filterwarnings" takes every warning for an error.
DEPRECATIONS_ARE_ERRORS: Final = "error::DeprecationWarning,error::PendingDeprecationWarning"

if TYPE_CHECKING:  # its home moved from one version of pytest-postgresql to the next
    from pytest_postgresql.executors import NoopExecutor


def pytest_configure(config: pytest.Config) -> None:
    """
    Let the processes of the tests fail of what is deprecated, hear the signals that they are sent, begin with compiled
    modules, and have time.

    What is ignored here is ignored there: SIGHUP under nohup, SIGINT and SIGQUIT in the background of a shell script.
    None of them writes bytecode, and in a fresh checkout each would spend a fifth of its start on compiling.
    """
    os.environ["PYTHONWARNINGS"] = DEPRECATIONS_ARE_ERRORS
    # Its clock judges the machine, which others keep busy, rather than the code.
    settings.register_profile("brooq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("brooq")
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(ROOT / "sqlalchemy_brooq", quiet=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    In a run of several processes, begin with the files of slow tests, and end with those of few: all end together.
    """
    if hasattr(config, "workerinput"):
        tests = Counter(item.location[0] for item in items)
        slow = {item.location[0] for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (item.location[0] not in slow, -tests[item.location[0]]))


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


pytest_plugins = [
    "tests.consumer",
    "tests.shared",
    "tests.browsers",
    "tests.history",
    "tests.networks",
    "tests.projects",
    "tests.queues",
    "tests.sides",
    "tests.versions",
]
