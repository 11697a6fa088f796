"""
``brooq-worker migrate``: the table ``job``, for those who don't use alembic themselves.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from sqlalchemy_brooq.cli.endings import Failed, explained, first_line
from sqlalchemy_brooq.cli.settings import database_url, load_dotenv

LOCK_TIMEOUT: Final = timedelta(minutes=1)


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
    "--database-url",
    metavar="URL",
    help="The database, as postgresql://user@host:5432/name. Other users of the machine can read options: a password"
    " belongs into the environment. [DATABASE_URL, or a file: DATABASE_URL_FILE]",
)
def migrate_command(revision: str, sql: bool, database_url: str | None) -> None:
    """
    Create the table "job", or bring it to the revision that this version needs.

    For a deployment that doesn't use alembic: it keeps a version table of its own, brooq_alembic_version.
    Running it again changes nothing, and several at once are safe: one works, the others wait for it.
    A table that your own alembic revisions manage is left alone.
    """
    if sql and database_url is not None:
        raise click.UsageError("--sql prints what an empty database needs and reaches none: leave out --database-url")
    with explained():
        click.echo(_sql(revision) if sql else _migrated(revision, database_url))


# Alembic is imported by who migrates: a worker's process, which has this module too, does without it.


def _sql(revision: str) -> str:
    from sqlalchemy_brooq.migrations import migration_sql

    return migration_sql(revision).rstrip()


def _migrated(revision: str, option: str | None) -> str:
    from alembic.util import CommandError

    from sqlalchemy_brooq.migrations import migrate

    load_dotenv(Path.cwd())
    try:
        return migrate(database_url(option), to=revision, lock_timeout=LOCK_TIMEOUT).message
    except CommandError as error:
        raise Failed(f"the migration failed: {first_line(error)}") from None
