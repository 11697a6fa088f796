"""
Keeps a schema on somebody's server for one run: ``python -m sqlalchemy_brooq.demo.schema_keeper``.

It makes the schema, waits until the process that started it lets it go or dies, however it dies, and drops the
schema with all that is in it. So nothing stays on the server, even after ``kill -9``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final

from sqlalchemy import URL, Connection, NullPool, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.demo import programs
from sqlalchemy_brooq.sqlstates import INSUFFICIENT_PRIVILEGE, sqlstate

OLDEST: Final = 140_000
"""The oldest server that will do, as ``server_version_num`` tells it."""
PATIENCE: Final = 20.0
"""Seconds for which the schema is tried to be dropped."""


class Refused(Exception):  # noqa: N818 - said to the user as it is
    """
    The server can't be used; the text says why.
    """


def main() -> None:
    """
    Keep the schema that the orders name, and answer with one line of JSON each time that something was done.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it is dropped when the parent lets go, not before
    orders = programs.read_orders()
    url, name = make_url(orders["url"]), orders["schema"]
    try:
        _say({"version": create_schema(url, name)})
        programs.await_release()
        drop_schema(url, name)
    except (Refused, SQLAlchemyError, ImportError) as error:
        _say({"problem": described(error, url)})
    else:
        _say({})


def create_schema(url: URL, name: str) -> str:
    """
    Make the schema *name*, which can't exist yet, and return the server's version.

    Raises:
        Refused: The server is too old, or the role may not make a schema.
        sqlalchemy.exc.SQLAlchemyError: The server can't be reached, or refuses for another reason.
    """
    with create_engine(url, poolclass=NullPool).begin() as connection:
        version, number, role, database = connection.execute(
            text(
                "SELECT current_setting('server_version'), current_setting('server_version_num')::int,"
                " current_user, current_database()"
            )
        ).one()
        if number < OLDEST:
            raise Refused(f"the server is PostgreSQL {version}, and {OLDEST // 10_000} is the oldest that will do")
        _create(connection, name, role, database)
        return str(version)


def drop_schema(url: URL, name: str) -> None:
    """
    Drop the schema *name* with all that is in it; try again while somebody holds a lock, or the server is away.
    """
    engine = create_engine(url, poolclass=NullPool)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with engine.begin() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '2s'"))
                connection.execute(text(f"DROP SCHEMA IF EXISTS {name} CASCADE"))
        except SQLAlchemyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def described(error: BaseException, url: URL) -> str:
    """
    Return what went wrong as `plain_text` does, without the password of *url*.
    """
    line = plain_text(error)
    return line.replace(str(url.password), "***") if url.password else line


def plain_text(error: BaseException) -> str:
    """
    Return in one line what the server, the driver or Python said, without the statement and its values.
    """
    original = getattr(error, "orig", None) or error
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    return " ".join(str(primary or original).split())


def _create(connection: Connection, name: str, role: str, database: str) -> None:
    try:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    except SQLAlchemyError as error:
        if sqlstate(error) != INSUFFICIENT_PRIVILEGE:
            raise
        quote = connection.dialect.identifier_preparer.quote
        raise Refused(
            f"the role {role!r} may not make a schema in the database {database!r}: "
            f"GRANT CREATE ON DATABASE {quote(database)} TO {quote(role)}, or give another database URL"
        ) from None


def _say(answer: Mapping[str, str]) -> None:
    try:
        print(json.dumps(answer), flush=True)
    except OSError:  # nobody listens any more
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the interpreter's own last flush


if __name__ == "__main__":
    main()
