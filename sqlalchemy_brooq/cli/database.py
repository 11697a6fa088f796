"""
How the commands that look at jobs and change them reach the database: its address, the schema, short transactions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import click
from sqlalchemy import Engine, create_engine

from sqlalchemy_brooq.browse import Transactions
from sqlalchemy_brooq.cli.endings import explained
from sqlalchemy_brooq.cli.settings import database_url, load_dotenv
from sqlalchemy_brooq.durations import parse_duration, shown
from sqlalchemy_brooq.schema import check_schema
from sqlalchemy_brooq.worker.connection import CONNECT, short_transaction

Function = TypeVar("Function", bound=Callable[..., Any])

APPLICATION: Final = "brooq-worker"
"""What the server shows of who is connected."""


def database_options(function: Function) -> Function:
    """
    Decorate a command with the options that say where the jobs are.
    """
    for option in (_SCHEMA, _URL):
        function = option(function)
    return function


_URL: Final = click.option(
    "--database-url",
    metavar="URL",
    help="The database, as postgresql://user@host:5432/name. Other users of the machine can read options: a password"
    " belongs into the environment. [DATABASE_URL, or a file: DATABASE_URL_FILE]",
)
_SCHEMA: Final = click.option(
    "--schema",
    metavar="NAME",
    help="The schema of the table; by default where the connection's search_path leads.",
)


@contextlib.contextmanager
def jobs_database(url: str | None, schema: str | None) -> Iterator[Transactions]:
    """
    Reach the database, make sure that the table is ours, and lend transactions; turns what fails into an ending.

    Args:
        url: The option's value.
        schema: The option's value.
    """
    with explained(), database_engine(url, schema) as engine:
        transactions = partial(short_transaction, engine)
        with transactions() as connection:
            check_schema(connection)
        yield transactions


@contextlib.contextmanager
def database_engine(url: str | None, schema: str | None, *, connections: int = 2) -> Iterator[Engine]:
    """
    Lend an engine for the database that the options, or the environment, name; with so many *connections* at most.
    """
    load_dotenv(Path())
    address = database_url(url)
    defaults = {"connect_timeout": str(CONNECT), "application_name": APPLICATION}
    given = {name: value for name, value in defaults.items() if name not in address.query}
    # Nothing of the session's state is used, so that a pooler in transaction mode may stand in between.
    arguments = {**given, "prepare_threshold": None}
    engine = create_engine(address, connect_args=arguments, pool_size=connections, max_overflow=0)
    try:
        yield engine.execution_options(schema_translate_map={None: schema}) if schema else engine
    finally:
        engine.dispose()


def duration(text: str) -> timedelta:
    """
    Return the duration that an option says.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def parsed_id(text: str) -> UUID:
    """
    Return the id of a job that an argument says.
    """
    try:
        return UUID(text)
    except ValueError:
        raise click.BadParameter(f"{shown(text)} is no job's id, which is a UUID") from None


def plain_text(text: str) -> str:
    """
    Return what an option says if the database can hold it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{shown(text)} is not UTF-8 text") from None
    return text
