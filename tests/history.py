"""
A table with a long history: what plans and figures are looked at on.

The history is made at most once in a run, when the first test wants it (about 4 s), and each test has a clone of it to
do with as it likes (0.2 s): add ready or future jobs to it, claim, settle, delete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import pytest
from psycopg import sql
from pytest_postgresql.executors import NoopExecutor
from sqlalchemy import URL, Engine, create_engine

from tests.databases import Admin, clone, fresh_database
from tests.shared import conninfo, name_in_run

HISTORY: Final = 1_000_000
"""How many jobs there are, all of them terminal: 97 of 100 ``done``, 2 ``dead`` and 1 ``canceled``."""
HISTORY_TOPICS: Final = tuple(f"history-{n}" for n in range(20))
"""Their topics, with as many jobs each."""
HISTORY_DAYS: Final = 20
"""How far back they go, evenly: 50,000 jobs a day up to now, oldest first in the table."""

#: Ids as `new_id` makes them, by the time of their job; the column's default would take as long as all the rest.
_ID: Final = (
    "(lpad(to_hex((EXTRACT(epoch FROM at) * 1000)::bigint), 12, '0')"
    " || '7' || substr(digits, 1, 3) || '8' || substr(digits, 4, 15))::uuid"
)
_JOBS: Final = f"""
INSERT INTO job (
    id, topic, priority, payload, state, attempts, available_at, claimed_at, locked_by, locked_until,
    last_error, idempotency_key, created_at, updated_at
)
SELECT
    {_ID}, 'history-' || n % {len(HISTORY_TOPICS)}, n % 5 - 2, jsonb_build_object('n', n),
    CASE WHEN n % 50 = 0 THEN 'dead' WHEN n % 100 = 1 THEN 'canceled' ELSE 'done' END,
    1, at, at + interval '1 s', 'host:' || n % 7, at + interval '61 s',
    CASE WHEN n % 50 = 0 THEN 'ValueError: no such customer' END,
    CASE WHEN n % 10 = 3 THEN 'key-' || n END,
    at, at + interval '2 s'
FROM
    generate_series(1, {HISTORY}) AS n,
    LATERAL (SELECT md5(n::text) AS digits) AS random,
    LATERAL (SELECT now() - interval '2 s' - interval '{HISTORY_DAYS} days' * ({HISTORY} - n) / {HISTORY} AS at)
        AS moment
"""


@pytest.fixture(scope="session")
def history_template(request: pytest.FixtureRequest, admin: Admin, server_url: URL, migrated: NoopExecutor) -> str:
    """
    The name of the database to clone.
    """
    name = name_in_run(request.config, "history")
    with _one_at_a_time(admin, name):
        if not admin.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchall():
            unfinished = f"{name}_unfinished"
            clone(admin, migrated.template_dbname, unfinished)
            _fill(server_url.set(database=unfinished))
            names = sql.Identifier(unfinished), sql.Identifier(name)
            admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(*names))
    return name


@contextmanager
def _one_at_a_time(admin: Admin, name: str) -> Iterator[None]:
    """
    Let one process of the run work at a time.
    """
    admin.execute("SELECT pg_advisory_lock(hashtext(%s))", [name])
    try:
        yield
    finally:
        admin.execute("SELECT pg_advisory_unlock(hashtext(%s))", [name])


def _fill(url: URL) -> None:
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute(_JOBS)
        connection.execute("VACUUM (FREEZE, ANALYZE) job")


@pytest.fixture(scope="module")
def history_of_module(admin: Admin, server_url: URL, history_template: str) -> Iterator[Engine]:
    """
    An engine on a database with a million terminal jobs, for tests of one module that only read it.
    """
    with fresh_database(admin, server_url, template=history_template, large=True) as url:
        engine = create_engine(url)
        yield engine
        engine.dispose()


@pytest.fixture
def history_url(admin: Admin, server_url: URL, history_template: str) -> Iterator[URL]:
    """
    A database of the test's own with a million terminal jobs in it, analyzed.
    """
    with fresh_database(admin, server_url, template=history_template, large=True) as url:
        yield url


@pytest.fixture
def history_engine(history_url: URL) -> Iterator[Engine]:
    """
    An engine on a database of the test's own with a million terminal jobs in it.
    """
    engine = create_engine(history_url)
    yield engine
    engine.dispose()
