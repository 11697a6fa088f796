"""
What alembic's autogenerate, and ``alembic check``, are to make of our table.

A consumer's environment compares its database with its models. Where our metadata isn't among them, our table would be
proposed for a drop; where it is, and the table isn't there, a copy without its storage settings would be proposed.
This module decides; alembic asks it through `plugin`, or through ``include_object``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, Table

from sqlalchemy_brooq.migrations.revising import schema_option
from sqlalchemy_brooq.migrations.runner import VERSION_TABLE
from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.schema import VERSIONS, SchemaState, Verdict, judged, schema_state, translated_schema

if TYPE_CHECKING:
    from alembic.migration import MigrationContext
    from alembic.util import CommandError


def include_object(object_: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
    """
    Keep autogenerate away from our tables: ``context.configure(include_object=brooq.include_object)``.

    For alembic before 1.18; from then on a plugin does the same with nothing to configure. A table that isn't ours is
    compared as ever.

    Args:
        object_: What alembic asks about. This one and the others are what it hands to such a function.
        name: The object's name.
        type_: What it is; all but ``"table"`` is let through.
        reflected: Whether it was found in the database, and not in the metadata.
        compare_to: Its counterpart there; ``None`` where there is none.

    Returns:
        Whether autogenerate is to compare it.

    Raises:
        alembic.util.CommandError: A comparison would propose to rewrite our table, or somebody else's of its name.
    """
    if type_ != "table":
        return True
    return included(object_, name, reflected=reflected, compare_to=compare_to, migration=_migration_under_way())


def included(
    table: Table,
    name: str | None,
    *,
    reflected: bool,
    compare_to: Table | None,
    migration: MigrationContext | None,
) -> bool:
    """
    Return whether *table* is to be compared.

    Args:
        table: A target's, or if *reflected* one that only the database has.
        name: Its name.
        reflected: Whether no target has it.
        compare_to: The database's table of the same name.
        migration: The context of the comparison, where it is known.

    Raises:
        alembic.util.CommandError: *table* is ours and the database's isn't or is of another revision, or the reverse.
    """
    if reflected:
        return name != VERSION_TABLE and not is_ours(table)
    if is_ours(table):
        return _is_comparable(table, compare_to, migration)
    if compare_to is not None and is_ours(compare_to):
        raise _error(
            f"the table {name} in the database is sqlalchemy-brooq's, and a model of yours has the same name: "
            "give it another name or schema, as it would be rewritten"
        )
    return True


def is_ours(table: Table) -> bool:
    """
    Return whether *table* bears our mark, in the database or among the targets.
    """
    return table.name == JOB.name and judged(table.comment).verdict is not Verdict.FOREIGN


def refuse_twins(targets: Iterable[MetaData]) -> None:
    """
    Raise ``CommandError`` where two of the *targets* have a table of our table's name; one of them is ours.
    """
    tables = [table for target in targets for table in target.tables.values()]
    for ours in filter(is_ours, tables):
        if any(other.key == ours.key and other is not ours for other in tables):
            raise _error(
                f"two of the target_metadata have a table {ours.key}, yours and sqlalchemy-brooq's: leave out "
                "brooq.metadata, and name another schema than that of your table by the option brooq_schema"
            )


def _migration_under_way() -> MigrationContext | None:
    """
    Return the context of the environment that runs, if one does: ``compare_metadata()`` needs none.
    """
    from alembic import context

    try:
        return context.get_context()
    except (NameError, AttributeError):  # before the first environment, and after the last
        return None


def _is_comparable(table: Table, compare_to: Table | None, migration: MigrationContext | None) -> bool:
    """
    Return whether our *table*, one of the targets, is to be compared with the database's.
    """
    if migration is not None and migration.dialect.name != "postgresql":
        raise _error(
            f"brooq.metadata is among the target_metadata, and this database is {migration.dialect.name}: "
            "sqlalchemy-brooq works on postgresql alone, so leave it out"
        )
    if compare_to is not None:
        state = judged(compare_to.comment, table.schema)
    else:
        state = _state_elsewhere(table, migration) or SchemaState(Verdict.MISSING, schema=table.schema)
    if state.verdict is Verdict.MISSING:
        raise _error(_missing(state))
    if state.problem is not None:
        raise _error(state.problem)
    return compare_to is not None


def _state_elsewhere(table: Table, migration: MigrationContext | None) -> SchemaState | None:
    """
    Return the state of our table in the schema that the migrations put it into, if that isn't *table*'s own.
    """
    connection = migration.connection if migration is not None else None
    if migration is None or connection is None or table.schema is not None:
        return None
    schema = schema_option(migration) or translated_schema(connection)
    return schema_state(connection, schema) if schema is not None else None


def _missing(state: SchemaState) -> str:
    return (
        f"{state.found}, and autogenerate can't write all of it (storage settings are missing): list {VERSIONS} in "
        "version_locations, then `alembic merge heads` and `alembic upgrade head`; or call "
        "brooq.migrations.upgrade(op) in a revision of yours; or run `brooq-worker migrate`"
    )


def _error(text: str) -> CommandError:
    from alembic.util import CommandError

    return CommandError(text)
