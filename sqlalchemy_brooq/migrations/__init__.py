"""
Our schema as a deployment step: the shipped revisions, and the ways to run them.

- Who uses alembic lists ``sqlalchemy_brooq:migrations/versions`` in ``version_locations``, or calls `upgrade` and
  `downgrade` in a revision of their own.
- `migrate` is what ``brooq-worker migrate`` calls: an environment and a version table of our own. `stamp` makes it
  manage a table that something else made, and `migration_sql` writes what it would do.

No code path of a worker leads here: none of them runs DDL. Alembic may import the library while it is
being imported itself, so nothing here imports alembic before a function needs it.
"""

from __future__ import annotations

from sqlalchemy_brooq.migrations.calling import downgrade, upgrade
from sqlalchemy_brooq.migrations.database import database_url
from sqlalchemy_brooq.migrations.lock import MigrationBlocked
from sqlalchemy_brooq.migrations.runner import VERSION_TABLE, MigrationResult, migrate, migration_sql, stamp

__all__ = [
    "VERSION_TABLE",
    "MigrationBlocked",
    "MigrationResult",
    "database_url",
    "downgrade",
    "migrate",
    "migration_sql",
    "stamp",
    "upgrade",
]
