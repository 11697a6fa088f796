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

from sqlalchemy import Connection, Engine, MetaData, NullPool, Table, create_engine, func, make_url, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from sqlalchemy_brooq.errors import ConfigError, SchemaMismatch
from sqlalchemy_brooq.migrations.lock import migration_lock
from sqlalchemy_brooq.model import REVISION
from sqlalchemy_brooq.schema import REVISIONS, SchemaState, Verdict, schema_state, translated_schema

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE: Final = "brooq_alembic_version"
"""Where `migrate` records the revision; other environments have tables of their own."""
BASE: Final = "base"

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
    message: str
    """The same in one line, for people."""
    managed_elsewhere: bool = False
    """Whether another chain of revisions manages the table, so that nothing was done."""

    @property
    def changed(self) -> bool:
        """
        Whether anything was done.
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
    database: Engine | URL | str, *, to: str = "head", lock_timeout: timedelta = _LOCK_TIMEOUT
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
        lock_timeout: How long to wait for another migration of the same database.

    Raises:
        SchemaMismatch: ``job`` isn't ours, is newer than this version, or is not what the version table says.
        MigrationBlocked: Another migration didn't end in time.
        ConfigError: There is no such revision, or *database* is no PostgreSQL.
    """
    target = _target(to)
    with _engine(database).connect() as connection:
        # An engine in AUTOCOMMIT would leave half a migration behind.
        connection.execution_options(isolation_level="READ COMMITTED")
        with migration_lock(connection, lock_timeout):
            return _migrate(connection, target)


def migration_sql(to: str = "head") -> str:
    """
    Return the SQL of a migration of an empty database to *to*, or from the newest revision to ``"base"``.

    It records itself in ``brooq_alembic_version``, so that `migrate` goes on from there.

    Raises:
        ConfigError: There is no such revision.
    """
    from alembic import command

    target = _target(to)
    config = _config()
    config.output_buffer = buffer = StringIO()
    with _alembic_in_use:
        if target == BASE:
            command.downgrade(config, f"{REVISION}:{BASE}", sql=True)
            # Some versions of alembic do that themselves, others leave the table empty.
            buffer.write(f"DROP TABLE IF EXISTS {VERSION_TABLE};\n")
        else:
            command.upgrade(config, target, sql=True)
    return buffer.getvalue()


def database_url(value: str | URL) -> URL:
    """
    Return *value* as a URL that names psycopg, where it names no driver; ``postgres://`` is understood.

    Raises:
        ConfigError: It can't be read, or leads to another dialect. The text isn't shown: it may hold a password.
    """
    try:
        url = make_url(value)
    except (ArgumentError, ValueError):
        raise ConfigError(
            ["the database URL can't be read: write it like postgresql://user:password@host:5432/database"]
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "postgresql":
        raise ConfigError([f"the database URL names {url.drivername!r}: sqlalchemy-brooq works on postgresql alone"])
    return url


def _target(to: str) -> str:
    if to == "head":
        return REVISION
    if to == BASE or to in REVISIONS:
        return to
    raise ConfigError([f"{to!r} is no revision of this version: head, {', '.join(REVISIONS)} or base"])


def _engine(database: Engine | URL | str) -> Engine:
    """
    Return the caller's engine, or one for the URL, which keeps no connection open.
    """
    if isinstance(database, Engine):
        if database.dialect.name != "postgresql":
            raise ConfigError([f"the engine's dialect is {database.dialect.name!r}: it has to be postgresql"])
        return database
    if not isinstance(database, URL | str):
        raise ConfigError([f"migrate takes an Engine or a URL, not {type(database).__name__}: give it engine.url"])
    engine = create_engine(database_url(database), poolclass=NullPool)
    if engine.dialect.is_async:
        raise ConfigError([f"the driver {engine.driver} is asynchronous: use postgresql+psycopg for migrations"])
    return engine


def _migrate(connection: Connection, target: str) -> MigrationResult:
    found = _look(connection)
    _refuse(found)
    before = found.state.revision
    if before is not None and found.recorded is None:
        return MigrationResult(before, before, _left_alone(found.state), managed_elsewhere=True)
    if target == (before or BASE):
        return MigrationResult(before, before, f"nothing to do: {_described(found.state)}")
    _run(connection, found.state, target)
    after = None if target == BASE else target
    return MigrationResult(
        before, after, f"migrated the schema {found.state.schema!r} from {before or BASE} to {target}"
    )


def _look(connection: Connection) -> _Found:
    from alembic.migration import MigrationContext

    with connection.begin():
        schema = translated_schema(connection) or connection.scalar(select(func.current_schema()))
        if schema is None:
            raise SchemaMismatch("no schema of the connection's search_path exists: create one, or name another")
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
            f"{VERSION_TABLE} says {found.recorded}, but {_described(state)}: something else changed it; "
            f"restore what is recorded, or drop {VERSION_TABLE} and migrate again"
        )
    if state.verdict in (Verdict.FOREIGN, Verdict.NEWER):
        raise SchemaMismatch(str(state.problem))


def _described(state: SchemaState) -> str:
    if state.verdict is Verdict.MISSING:
        return f"there is no table job in the schema {state.schema!r}"
    mark = f"is of revision {state.revision}" if state.revision else "has no version mark in its comment"
    return f"the table job in the schema {state.schema!r} {mark}"


def _left_alone(state: SchemaState) -> str:
    return (
        f"nothing was changed: {_described(state)}, and another chain of revisions manages it "
        f"({VERSION_TABLE} records nothing); migrate it there, with `alembic upgrade head`"
    )


def _run(connection: Connection, state: SchemaState, target: str) -> None:
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    config.attributes["schema"] = state.schema
    with _alembic_in_use:
        if _rank(target) > _rank(state.revision):
            command.upgrade(config, target)
        else:
            command.downgrade(config, target)
    if target == BASE:
        with connection.begin():
            Table(VERSION_TABLE, MetaData(), schema=state.schema).drop(connection, checkfirst=True)


def _rank(revision: str | None) -> int:
    return REVISIONS.index(revision) if revision in REVISIONS else -1


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "sqlalchemy_brooq:migrations")
    return config
