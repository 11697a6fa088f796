"""
Our own alembic environment, for work in a checkout: ``alembic upgrade head``, ``alembic check``, ``alembic revision``.

The database is the one that ``DATABASE_URL`` names in the process's environment; nothing is read from a file,
so that no password is ever in one. Writing SQL (``--sql``) needs no database. The environment sees our table alone:
``check`` is right also where the database holds other tables. The version table is alembic's default one, as in
a consumer's environment; ``brooq-worker migrate`` has its own.
"""

from __future__ import annotations

import os
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationInfo
from alembic.util import CommandError
from sqlalchemy import NullPool, create_engine

from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.migrations import database_url
from sqlalchemy_brooq.model import metadata


def ours(name: str | None, kind: str, _parents: object) -> bool:
    """
    Tell alembic which of the database's tables to compare.
    """
    return kind != "table" or name in metadata.tables


def tell(*, step: MigrationInfo, **_rest: Any) -> None:
    """
    Say what was done; alembic itself only logs it.
    """
    done = "upgraded to" if step.is_upgrade else "downgraded from"
    context.config.print_stdout(f"{done} {step.up_revision_id}")


def online() -> None:
    """
    Run on the database of ``DATABASE_URL``.
    """
    value = os.environ.get("DATABASE_URL")
    if not value:
        raise CommandError("DATABASE_URL is not set: export it, like postgresql://user:password@localhost/database")
    try:
        engine = create_engine(database_url(value), poolclass=NullPool)
    except ConfigError as error:
        raise CommandError(f"DATABASE_URL is refused: {error}") from error
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            include_name=ours,
            # While a revision is being written, the model is ahead of the table, which the plugin would refuse.
            autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.brooq"],
            compare_server_default=True,
            on_version_apply=tell,  # type: ignore[arg-type] # alembic passes keywords
        )
        with context.begin_transaction():
            context.run_migrations()


def offline() -> None:
    """
    Write the SQL instead of running it.
    """
    context.configure(dialect_name="postgresql", literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    offline()
else:
    online()
