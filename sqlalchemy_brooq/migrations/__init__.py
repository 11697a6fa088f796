"""
Our schema as a deployment step: the shipped revisions, and the ways to run them.

`migrate` is what ``brooq-worker migrate`` calls: an environment and a version table of our own, for those who
don't use alembic themselves. Who does, lists ``sqlalchemy_brooq:migrations/versions`` in ``version_locations``.

No worker imports this package: none of its code paths runs DDL. Alembic may import the library while it is
being imported itself, so nothing here imports alembic before a function needs it.
"""

from __future__ import annotations

from sqlalchemy_brooq.migrations.lock import MigrationBlocked
from sqlalchemy_brooq.migrations.runner import VERSION_TABLE, MigrationResult, database_url, migrate, migration_sql

__all__ = [
    "VERSION_TABLE",
    "MigrationBlocked",
    "MigrationResult",
    "database_url",
    "migrate",
    "migration_sql",
]
