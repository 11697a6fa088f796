"""
``brooq-worker migrate``: the table ``job``, for those who don't use alembic themselves.
"""

from __future__ import annotations

from datetime import timedelta

import click

from sqlalchemy_brooq.cli.database import database_engine, database_options
from sqlalchemy_brooq.cli.endings import Failed, Refused, explained, first_line
from sqlalchemy_brooq.cli.progress import index_progress
from sqlalchemy_brooq.durations import parse_duration


@click.command("migrate", short_help="Create or change the table job.")
@click.option(
    "--to",
    "revision",
    metavar="REV",
    default="head",
    show_default=True,
    help="The revision to reach: head, a revision such as brooq0001, or base, which drops the table with all its jobs.",
)
@click.option("--sql", is_flag=True, help="Print the SQL that an empty database needs, and reach no database.")
@click.option(
    "--stamp",
    is_flag=True,
    help="Record the revision that the table is of, and change nothing: from then on this command manages a table that"
    " alembic revisions of yours made. With --to base, forget it: from then on they manage it.",
)
@click.option(
    "--lock-timeout",
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="How long to wait for another migration, and for transactions that use the table.",
)
@database_options
def migrate_command(
    revision: str, sql: bool, stamp: bool, lock_timeout: str, database_url: str | None, schema: str | None
) -> None:
    """
    Create the table "job", or bring it to the revision that this version needs.

    For a deployment that doesn't use alembic: it keeps a version table of its own, brooq_alembic_version.
    Running it again changes nothing, and several at once are safe: one works, the others wait for it.
    A table that your own alembic revisions manage is left alone.
    """
    options = {"--stamp": stamp, "--database-url": database_url is not None, "--schema": schema is not None}
    for unwanted in (option for option, given in options.items() if sql and given):
        raise click.UsageError(f"--sql prints what an empty database needs and reaches none: leave out {unwanted}")
    with explained():
        click.echo(_sql(revision) if sql else _migrated(revision, stamp, _duration(lock_timeout), database_url, schema))


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Refused(f"--lock-timeout: {error}") from None


# Alembic is imported by who migrates: a worker's process, which has this module too, does without it.


def _sql(revision: str) -> str:
    from sqlalchemy_brooq.migrations import migration_sql

    return migration_sql(revision).rstrip()


def _migrated(revision: str, stamp: bool, lock_timeout: timedelta, url: str | None, schema: str | None) -> str:
    from alembic.util import CommandError

    from sqlalchemy_brooq import migrations

    work = migrations.stamp if stamp else migrations.migrate
    try:
        with database_engine(url, schema) as engine, index_progress(engine):
            return work(engine, to=revision, lock_timeout=lock_timeout).message
    except CommandError as error:
        raise Failed(f"the migration failed: {first_line(error)}") from None
