"""
Where the demo takes place: on a PostgreSQL of its own, or in a schema of its own on the user's server.

Owns making that place and taking it away again, whatever happens in between. Knows nothing of shops or jobs.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from sqlalchemy import URL, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.demo import programs
from sqlalchemy_brooq.demo.interrupts import Interrupts
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.demo.schema_keeper import described, drop_schema
from sqlalchemy_brooq.errors import BrooqError, ConfigError
from sqlalchemy_brooq.migrations import database_url

DRIVER: Final = "postgresql+psycopg"
CONNECT_TIMEOUT: Final = "10"
"""Seconds to wait for a server that doesn't answer; libpq would wait for minutes."""

LAST_WORDS: Final = 5.0
"""Seconds that the schema's keeper has to end once everything is done; if it takes longer, it goes on alone."""


class DemoUnavailable(BrooqError, RuntimeError):  # noqa: N818 - names the caller's situation
    """
    The demo can't take place here; the text says why, in one line and without a password.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """
    A database to work in.
    """

    url: URL
    """Whoever connects with it finds the tables by their bare names."""
    version: str
    """The server's."""
    schema: str | None
    """The schema on the user's server; ``None`` on a server of our own."""


@contextmanager
def embedded(interrupts: Interrupts) -> Iterator[Place]:
    """
    Start a PostgreSQL of our own, and take it away at the end.

    Raises:
        PostgresUnavailable: There are no binaries, or they don't start.
    """
    with _libpq_left_alone(), ExitStack() as stack:
        with interrupts.deferred():
            server = stack.enter_context(LocalPostgres(durable=True))
        engine = create_engine(server.url(), poolclass=NullPool)
        with engine.connect() as connection:
            version = connection.scalar(text("SELECT current_setting('server_version')"))
        yield Place(server.url(), str(version), None)


@contextmanager
def own_schema(url: URL, interrupts: Interrupts) -> Iterator[Place]:
    """
    Make a schema of our own in the database of *url*, and drop it at the end.

    A process beside this one does both, so that the schema is also dropped if this one is killed.

    Raises:
        DemoUnavailable: The database can't be reached, or no schema can be made or dropped there.
    """
    schema = f"brooq_demo_{secrets.token_hex(4)}"
    url = _with_defaults(url)
    orders = {"url": url.render_as_string(hide_password=False), "schema": schema}
    with ExitStack() as stack:
        with interrupts.deferred():
            keeper = programs.start("schema_keeper", orders)
            stack.callback(_leave, keeper)
        answer = _answer(keeper)
        if "version" not in answer:
            raise DemoUnavailable(answer.get("problem", "no schema could be made: the process for it ended"))
        stack.callback(_see_to_it, keeper, url, schema)
        yield Place(_in_schema(url, schema), answer["version"], schema)


def checked_url(value: str | URL) -> URL:
    """
    Return *value* as a URL for psycopg.

    Raises:
        ConfigError: It leads to something else.
    """
    url = database_url(value)
    if url.drivername != DRIVER:
        problem = (
            f"the database URL names the driver {url.get_driver_name()!r}: the demo connects with psycopg, "
            f"so write postgresql:// or {DRIVER}://"
        )
        raise ConfigError([problem])
    return url


def _see_to_it(keeper: subprocess.Popen[bytes], url: URL, schema: str) -> None:
    """
    Let *keeper* drop the schema, and make sure that it did.
    """
    programs.let_go(keeper)
    answer = _answer(keeper)
    if answer == {}:
        return
    problem = answer.get("problem")
    if problem is None:  # the keeper was killed: it is ours to do
        try:
            drop_schema(url, schema)
        except SQLAlchemyError as error:
            problem = described(error, url)
        else:
            return
    raise DemoUnavailable(f"the schema {schema} could not be dropped ({problem}): DROP SCHEMA {schema} CASCADE")


def _answer(keeper: subprocess.Popen[bytes]) -> dict[str, str]:
    """
    Return the next answer of *keeper*, or its last words where it ended without one.
    """
    last = b""
    for line in keeper.stdout or ():
        last = line
        if line.startswith(b"{"):
            answer: dict[str, str] = json.loads(line)
            return answer
    return {"ended": last.decode(errors="replace").strip()}


def _leave(keeper: subprocess.Popen[bytes]) -> None:
    """
    Let *keeper* end; never kill it, as it may be about to make or to drop the schema.
    """
    programs.let_go(keeper)
    with suppress(subprocess.TimeoutExpired):
        keeper.wait(LAST_WORDS)
    if keeper.stdout is not None:
        keeper.stdout.close()


def _with_defaults(url: URL) -> URL:
    defaults = {"connect_timeout": CONNECT_TIMEOUT, "application_name": "brooq-demo"}
    return url.update_query_dict({name: value for name, value in defaults.items() if name not in url.query})


def _in_schema(url: URL, schema: str) -> URL:
    """
    Return *url* with the schema as the search path of each session.

    In the URL, because an engine derived from an ``AsyncEngine``, and another process, get nothing else.
    """
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    return url.update_query_dict({"options": f"{options} -c search_path={schema}".strip()})


@contextmanager
def _libpq_left_alone() -> Iterator[None]:
    """
    Keep what the environment says to libpq out of the way: ``PGHOSTADDR`` alone would lead to another server.
    """
    ours = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    for name in ours:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(ours)
