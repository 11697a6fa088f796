"""
What a revision asks before it changes anything: which schema it is to work in, and whether the table fits.

Released revisions import this, and they never change: whatever is here keeps its meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from sqlalchemy import Connection, column, func, select, table

from sqlalchemy_brooq.errors import SchemaMismatch
from sqlalchemy_brooq.schema import SchemaState, Verdict, creation_schema, schema_state

if TYPE_CHECKING:
    from alembic.migration import MigrationContext

SCHEMA_OPTION: Final = "brooq_schema"
"""The option of alembic's configuration that names the schema of ``job``."""


class Op(Protocol):
    """
    Alembic's ``op``: the module, or an ``Operations`` object.
    """

    def get_context(self) -> MigrationContext:
        """
        Return the context of the migration under way.
        """

    def get_bind(self) -> Connection:
        """
        Return its connection.
        """


def begin(op: Op, since: str | None) -> str | None:
    """
    Return the schema to give to each operation, if the table there is of the revision *since*.

    Offline there is nothing to read, so nothing is refused.

    Args:
        op: Alembic's ``op``.
        since: What the revision builds on, or undoes; ``None``: there must be no table yet.

    Returns:
        What the option ``brooq_schema`` says; ``None`` where it isn't set, and the table is in the default schema.

    Raises:
        alembic.util.CommandError: The table is missing, somebody else's, or of another revision; nothing was changed.
    """
    from alembic.util import CommandError

    context = op.get_context()
    if context.dialect.name != "postgresql":
        raise CommandError(f"sqlalchemy-brooq works on postgresql alone, and this database is {context.dialect.name}")
    schema = schema_option(context)
    if not context.as_sql:
        state = state_in(op.get_bind(), schema)
        if (problem := _obstacle(state, since)) is not None:
            raise CommandError(problem)
    return schema


def schema_option(context: MigrationContext) -> str | None:
    """
    Return what the option ``brooq_schema`` of alembic's configuration says, if there is one.
    """
    config = context.config
    return (config.get_alembic_option(SCHEMA_OPTION) or None) if config is not None else None


def state_in(connection: Connection, schema: str | None) -> SchemaState:
    """
    Return the state of the table in *schema*, or where ``CREATE TABLE job`` would make one.

    Raises:
        alembic.util.CommandError: There is no such schema.
    """
    from alembic.util import CommandError

    if schema is None:
        try:
            return schema_state(connection, creation_schema(connection))
        except SchemaMismatch as error:
            raise CommandError(str(error)) from None
    names = table("pg_namespace", column("nspname"), schema="pg_catalog").c.nspname
    if connection.scalar(select(func.count()).where(names == schema)) == 0:
        raise CommandError(
            f"the schema {schema!r}, which the option {SCHEMA_OPTION} names, doesn't exist: create it first"
        )
    return schema_state(connection, schema)


def _obstacle(state: SchemaState, since: str | None) -> str | None:
    """
    Return what keeps a revision that builds on *since* from being run, in one line.
    """
    if state.revision == since and state.verdict is not Verdict.FOREIGN:
        return None
    if state.verdict is Verdict.FOREIGN:
        return (
            f"{state.found}, so it isn't touched: name another schema by the option {SCHEMA_OPTION}, "
            "or rename that table"
        )
    if since is None:
        return (
            f"{state.found}, and this revision would create it: if `brooq-worker migrate` made it, "
            f"take it over with `alembic stamp {state.revision}`"
        )
    return (
        f"{state.found}, but this revision builds on {since}: something else changed it; "
        "restore what is recorded, or correct the record with `alembic stamp`"
    )
