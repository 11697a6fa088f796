"""
The environment of `sqlalchemy_brooq.migrations`: alembic runs this file, nobody imports it.

It works on the connection that its caller hands over in the configuration's attributes, so that no
URL, and no password in one, passes through the syntax of an ini file.
"""

from __future__ import annotations

from datetime import timedelta

from alembic import context
from alembic.util import CommandError
from sqlalchemy import func, select

from sqlalchemy_brooq.migrations.runner import VERSION_TABLE


def run() -> None:
    """
    Run the revisions that the command asks for, or write their SQL.
    """
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql",
            literal_binds=True,
            dialect_opts={"paramstyle": "named"},
            version_table=VERSION_TABLE,
        )
    else:
        given = context.config.attributes
        if "connection" not in given:
            raise CommandError(
                "this environment has no database of its own: use `brooq-worker migrate`,"
                " or list sqlalchemy_brooq:migrations/versions in your own version_locations"
            )
        context.configure(
            connection=given["connection"],
            version_table=VERSION_TABLE,
            version_table_schema=given["schema"],
        )
    with context.begin_transaction():
        _limit_waiting()
        context.run_migrations()


def _limit_waiting() -> None:
    """
    Keep statements from waiting for a lock for longer than the caller says; to the end of the transaction.
    """
    limit = context.config.attributes.get("lock_timeout")
    if limit is not None:
        milliseconds = limit // timedelta(milliseconds=1)
        context.get_bind().execute(select(func.set_config("lock_timeout", str(milliseconds), True)))


run()
