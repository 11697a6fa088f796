"""
Making databases on the run's server, and dropping them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL

HERE = "pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
"""
For the catalogs of all databases: of this one only, as other tests' databases are on the same server.
"""

Admin = psycopg.Connection[dict[str, Any]]


@contextmanager
def fresh_database(admin: Admin, server_url: URL, template: str, *, large: bool = False) -> Iterator[URL]:
    """
    Clone *template* and drop the clone afterwards; fail if a connection to it is left open.
    """
    name = f"brooq_test_{token_hex(6)}"
    clone(admin, template, name, large=large)
    try:
        yield server_url.set(database=name)
        _await_no_connection(admin, name)
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def clone(admin: Admin, template: str, name: str, *, large: bool = False) -> None:
    """
    Make the database *name* of *template*; what is *large* isn't written to the log of changes as well.
    """
    by_files = large and admin.info.server_version >= 15_00_00  # before, there is no other way
    how = sql.SQL("STRATEGY file_copy" if by_files else "")
    names = sql.Identifier(name), sql.Identifier(template)
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(*names, how))


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
