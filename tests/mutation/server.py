"""
A program of its own, as it imports the code: the server of a run, and migrated databases to clone.

It prints one line of JSON, the server's URL and the databases' names, and is there until its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import URL, make_url

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from tests.databases import fresh_database
from tests.shared import SERVER_VARIABLE, conninfo


def main(number: int) -> None:
    """
    Serve *number* databases.
    """
    with ExitStack() as stack:
        url = _server(stack)
        admin: psycopg.Connection[dict[str, Any]] = psycopg.connect(
            conninfo(url), autocommit=True, row_factory=dict_row
        )
        stack.enter_context(admin)
        databases = [stack.enter_context(fresh_database(admin, url, "template0")) for _ in range(number)]
        for database in databases:
            migrate(database)
        names = [database.database for database in databases]
        sys.stdout.write(json.dumps({"url": url.render_as_string(hide_password=False), "names": names}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


def _server(stack: ExitStack) -> URL:
    if given := os.environ.get(SERVER_VARIABLE):
        return make_url(given).set(drivername="postgresql+psycopg")
    return stack.enter_context(LocalPostgres(durable=False, settings={"max_connections": "200"})).url()


if __name__ == "__main__":
    main(int(sys.argv[1]))
