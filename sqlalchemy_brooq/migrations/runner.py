"""
Runs the shipped revisions in an environment and with a version table of our own.

Decides first, under the lock, whether this database is ours to migrate; alembic then does the
work, on the same connection.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy.engine import URL

from sqlalchemy_brooq.errors import SchemaMismatch
from sqlalchemy_brooq.migrations.chain import BASE, HEAD, chain_config, rank, target
from sqlalchemy_brooq.migrations.database import engine_of
from sqlalchemy_brooq.migrations.lock import Patience, migration_lock
from sqlalchemy_brooq.model import REVISION
from sqlalchemy_brooq.schema import SchemaState, Verdict, creation_schema, schema_state

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE: Final = "brooq_alembic_version"
"""Where `migrate` records the revision; other environments have tables of their own."""

_LOCK_TIMEOUT: Final = timedelta(minutes=1)
#: Alembic's ``op`` and ``context`` are the process's: two migrations in two threads would share them.
_alembic_in_use = threading.Lock()


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """
    What `migrate` found and did.
    """

    before: str | None
    """The revision that the table was of; ``None``: there was no table."""
    after: str | None
    """The revision that it is of now."""
    message: str
    """The same in one line, for people."""
    managed_elsewhere: bool = False
    """Whether another chain of revisions manages the table, so that nothing was done."""

    @property
    def changed(self) -> bool:
        """
        Whether the table was changed.
        """
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class _Found:
    """
    The database before a migration.
    """

    state: SchemaState
    recorded: str | None
    """The revision in our version table, if there is one."""


def migrate(
    database: Engine | URL | str, *, to: str = HEAD, lock_timeout: timedelta = _LOCK_TIMEOUT
) -> MigrationResult:
    """
    Bring the table ``job`` to a revision, with a version table of our own (``brooq_alembic_version``).

    Two at once are safe: one works, the other waits for it. A table that another chain of revisions manages
    is left alone, and the result says so; one that isn't ours is refused. The table is made where ``job`` leads
    by the engine's ``schema_translate_map`` or its ``search_path``; that schema has to exist. The lock needs a
    session of its own: behind a pooler in transaction mode, give the server's own address.

    Args:
        database: An ``Engine``, or a URL.
        to: ``"head"`` or a revision of ours; ``"base"`` drops the table with all its jobs.
        lock_timeout: A ``timedelta``: how long to wait, for another migration of the same database, and for who holds
            a lock on the table that is in the way. A minute by default.

    Raises:
        SchemaMismatch: ``job`` isn't ours, is newer than this version, or is not what the version table says.
        MigrationBlocked: Another migration, or a transaction that uses the table, didn't end in time.
        ConfigError: There is no such revision, or *database* is no PostgreSQL.
    """
    end = target(to)
    patience = Patience(lock_timeout)
    with engine_of(database).connect() as connection:
        # An engine in AUTOCOMMIT would leave half a migration behind.
        connection.execution_options(isolation_level="READ COMMITTED")
        with migration_lock(connection, patience):
            return _migrate(connection, end, patience)


def stamp(database: Engine | URL | str, *, to: str = HEAD, lock_timeout: timedelta = _LOCK_TIMEOUT) -> MigrationResult:
    """
    Write our version table and leave ``job`` alone: `migrate` manages it from then on, whatever made it.

    Args:
        database: As for `migrate`.
        to: What to record. ``"head"`` is whatever revision the table is of; another one has to be that revision.
            ``"base"`` drops the version table: another chain of revisions manages ``job`` from then on.
        lock_timeout: As for `migrate`.

    Raises:
        SchemaMismatch: There is no table ``job`` of ours, or it isn't of the revision that is to be recorded.
        MigrationBlocked: Another migration didn't end in time.
        ConfigError: There is no such revision, or *database* is no PostgreSQL.
    """
    target(to)
    patience = Patience(lock_timeout)
    with engine_of(database).connect() as connection:
        connection.execution_options(isolation_level="READ COMMITTED")
        with migration_lock(connection, patience):
            return _stamp(connection, to)


def migration_sql(to: str = HEAD) -> str:
    """
    Return the SQL of a migration of an empty database to *to*, or from the newest revision to ``"base"``.

    It records itself in ``brooq_alembic_version``, so that `migrate` goes on from there.

    Args:
        to: ``"head"``, a revision of ours, or ``"base"``.

    Raises:
        ConfigError: There is no such revision.
    """
    from alembic import command

    end = target(to)
    config = chain_config()
    config.output_buffer = buffer = StringIO()
    with _alembic_in_use:
        if end == BASE:
            command.downgrade(config, f"{REVISION}:{BASE}", sql=True)
            # Some versions of alembic do that themselves, others leave the table empty.
            buffer.write(f"DROP TABLE IF EXISTS {VERSION_TABLE};\n")
        else:
            command.upgrade(config, end, sql=True)
    return buffer.getvalue()


def _migrate(connection: Connection, end: str, patience: Patience) -> MigrationResult:
    found = _look(connection)
    _refuse(found)
    state, before = found.state, found.state.revision
    if before is not None and found.recorded is None:
        return MigrationResult(before, before, _left_alone(state), managed_elsewhere=True)
    if end == (before or BASE):
        return MigrationResult(before, before, f"nothing to do: {state.found}")
    patience.try_again(connection, lambda: _run(connection, state, end, patience))
    after = None if end == BASE else end
    return MigrationResult(before, after, f"migrated the schema {state.schema!r} from {before or BASE} to {end}")


def _stamp(connection: Connection, to: str) -> MigrationResult:
    from alembic import command

    state = _look(connection).state
    before = state.revision
    if to == BASE:
        _drop_version_table(connection, state)
        text = f"{VERSION_TABLE} is gone from the schema {state.schema!r}, and job is left as it is"
        return MigrationResult(before, before, f"{text}: another chain of revisions manages it from now on")
    if before is None or state.verdict is Verdict.NEWER:
        raise SchemaMismatch(f"{state.found}: there is nothing to record")
    if to not in (HEAD, before):
        raise SchemaMismatch(f"{state.found}, and not of {to}: leave out --to, to record what it is")
    with _alembic_in_use:
        command.stamp(_configured(connection, state), before, purge=True)
    return MigrationResult(
        before,
        before,
        f"recorded {before} in {VERSION_TABLE}: `brooq-worker migrate` manages the table job in the schema "
        f"{state.schema!r} from now on, so let no other chain of revisions do so",
    )


def _look(connection: Connection) -> _Found:
    from alembic.migration import MigrationContext

    with connection.begin():
        schema = creation_schema(connection)
        options = {"version_table": VERSION_TABLE, "version_table_schema": schema}
        recorded = MigrationContext.configure(connection, opts=options).get_current_revision()
        return _Found(schema_state(connection, schema), recorded)


def _refuse(found: _Found) -> None:
    """
    Raise `SchemaMismatch` where a migration would do harm or say something untrue.
    """
    state = found.state
    if found.recorded not in (None, state.revision):
        raise SchemaMismatch(
            f"{VERSION_TABLE} says {found.recorded}, but {state.found}: something else changed it; "
            f"restore what is recorded, or drop {VERSION_TABLE} and migrate again"
        )
    if state.verdict in (Verdict.FOREIGN, Verdict.NEWER):
        raise SchemaMismatch(str(state.problem))


def _left_alone(state: SchemaState) -> str:
    return (
        f"nothing was changed: {state.found}, and another chain of revisions manages it "
        f"({VERSION_TABLE} records nothing); migrate it there, with `alembic upgrade head`"
    )


def _run(connection: Connection, state: SchemaState, end: str, patience: Patience) -> None:
    from alembic import command

    config = _configured(connection, state)
    config.attributes["lock_timeout"] = patience.slice
    with _alembic_in_use:
        if rank(end) > rank(state.revision):
            command.upgrade(config, end)
        else:
            command.downgrade(config, end)
    if end == BASE:
        _drop_version_table(connection, state)


def _configured(connection: Connection, state: SchemaState) -> Config:
    config = chain_config()
    config.attributes["connection"] = connection
    config.attributes["schema"] = state.schema
    return config


def _drop_version_table(connection: Connection, state: SchemaState) -> None:
    with connection.begin():
        Table(VERSION_TABLE, MetaData(), schema=state.schema).drop(connection, checkfirst=True)
