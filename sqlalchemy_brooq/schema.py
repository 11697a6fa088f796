"""
Whether the table ``job`` is there, is ours, and is of the revision that this version needs.

The table's comment is the version mark. This module reads and judges it; changing anything is
the business of ``migrations``, which no code path of a worker imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, func, select

from sqlalchemy_brooq.catalog import Difference, differences
from sqlalchemy_brooq.errors import SchemaMismatch
from sqlalchemy_brooq.model import REVISION, VERSION_MARK
from sqlalchemy_brooq.statements.schema import parts, version_mark

REVISIONS: Final = ("brooq0001",)
"""Every revision that this version knows, oldest first; the last one is the model's."""
VERSIONS: Final = "sqlalchemy_brooq:migrations/versions"
"""Where alembic finds the first revision; each later one is in a folder of its own below."""

_COMMANDS: Final = "run `alembic upgrade head`, or `brooq-worker migrate`"


class Verdict(StrEnum):
    """
    How what is in the database compares with what this version needs.
    """

    MISSING = "missing"
    """Nothing is called ``job``."""
    FOREIGN = "foreign"
    """Something is called ``job``, and its comment is no version mark of ours."""
    OLDER = "older"
    CURRENT = "current"
    NEWER = "newer"
    """The mark names a revision that this version doesn't know."""


@dataclass(frozen=True, slots=True)
class SchemaState:
    """
    What was found in the database.
    """

    verdict: Verdict
    revision: str | None = None
    """The revision in the version mark, where there is one."""
    schema: str | None = None
    """The schema that was looked into; ``None``: wherever ``job`` leads on that connection."""

    @property
    def found(self) -> str:
        """
        What there is, as part of a sentence.
        """
        match self.verdict:
            case Verdict.MISSING:
                return f"there is no {self._table}"
            case Verdict.FOREIGN:
                return f"the {self._table} has no version mark of sqlalchemy-brooq's in its comment"
            case _:
                return f"the {self._table} is of revision {self.revision}"

    @property
    def problem(self) -> str | None:
        """
        What is wrong and what to do about it, in one line; ``None`` where nothing is.
        """
        job = f"the {self._table}"
        match self.verdict:
            case Verdict.MISSING:
                return f"{job} is missing; this version needs its revision {REVISION}: {_COMMANDS}"
            case Verdict.FOREIGN:
                return (
                    f"{job} isn't sqlalchemy-brooq's (its comment doesn't begin with {VERSION_MARK.strip()!r}); this "
                    f"version needs revision {REVISION}: use another schema or rename that table, then {_COMMANDS}"
                )
            case Verdict.OLDER:
                return f"{job} is of revision {self.revision}; this version needs {REVISION}: {self._adoption}"
            case Verdict.NEWER:
                return (
                    f"{job} is of revision {self.revision}; this version needs {REVISION} and doesn't know that one: "
                    f"install the newer sqlalchemy-brooq that made it, or there run `alembic downgrade {REVISION}`, "
                    f"or `brooq-worker migrate --to {REVISION}`"
                )
            case Verdict.CURRENT:
                return None

    @property
    def _table(self) -> str:
        return "table job" if self.schema is None else f"table job in the schema {self.schema!r}"

    @property
    def _adoption(self) -> str:
        """
        How to get from an older revision to the newest.
        """
        newer = REVISIONS[REVISIONS.index(str(self.revision)) + 1 :]
        return (
            f"list {' and '.join(map(location, newer))} in version_locations and run `alembic merge heads` "
            "and `alembic upgrade head`, or run `brooq-worker migrate`"
        )


def location(revision: str) -> str:
    """
    Return what ``version_locations`` has to list, so that alembic finds *revision*.

    Later revisions have folders of their own, which no entry for another one leads to. So a new version of this
    library gives nobody's chain a second head.
    """
    if revision == REVISIONS[0]:
        return VERSIONS
    return f"{VERSIONS}/{revision.removeprefix('brooq')}"


def schema_state(connection: Connection, schema: str | None = None) -> SchemaState:
    """
    Read the version mark and say what it means for this version.

    The read is part of the connection's transaction, and begins one where none is open.

    Args:
        connection: To the database in question.
        schema: Where to look. By default where the connection's ``schema_translate_map`` puts ``job``,
            or where its ``search_path`` finds it.
    """
    schema = schema or translated_schema(connection)
    marks = connection.scalars(version_mark(schema)).all()
    return judged(marks[0], schema) if marks else SchemaState(Verdict.MISSING, schema=schema)


def judged(comment: str | None, schema: str | None = None) -> SchemaState:
    """
    Return what the *comment* of a table ``job`` in *schema* means for this version.
    """
    revision = _revision(comment)
    return SchemaState(_verdict(revision), revision, schema)


def check_schema(connection: Connection, schema: str | None = None) -> None:
    """
    Raise `SchemaMismatch` unless the table is of the revision that this version needs.

    Raises:
        SchemaMismatch: It is missing, not ours, older or newer. One line names the revision that was found,
            the one that is needed, and the commands.
    """
    problem = schema_state(connection, schema).problem
    if problem is not None:
        raise SchemaMismatch(problem)


def drift(connection: Connection, schema: str | None = None) -> list[str]:
    """
    Say what distinguishes the table from the one that this version makes, one line a difference.

    For a doctor, not for a worker: it compares every column, index, constraint and setting. A table of another
    revision, or one that isn't ours, is one line, that of `check_schema`.
    """
    state = schema_state(connection, schema)
    if state.problem is not None:
        return [state.problem]
    return list(map(str, table_differences(connection, state.schema)))


def table_differences(connection: Connection, schema: str | None) -> list[Difference]:
    """
    Return what distinguishes a table of this version's revision from the one that it makes.
    """
    return differences({(kind, name): printed for kind, name, printed in connection.execute(parts(schema))})


def translated_schema(connection: Connection) -> str | None:
    """
    Return the schema that *connection* puts ``job`` into instead of the default one, if any.
    """
    translation = connection.get_execution_options().get("schema_translate_map") or {}
    schema: str | None = translation.get(None)
    return schema


def creation_schema(connection: Connection) -> str:
    """
    Return the schema in which ``CREATE TABLE job`` makes its table on *connection*.

    ``job`` may mean another one's: the ``search_path`` finds it in any of its schemas, and creates in the first.

    Raises:
        SchemaMismatch: In none, as no schema of the ``search_path`` exists.
    """
    schema: str | None = translated_schema(connection) or connection.scalar(select(func.current_schema()))
    if schema is None:
        raise SchemaMismatch("no schema of the connection's search_path exists: create one, or name another")
    return schema


def _revision(mark: str | None) -> str | None:
    if mark is None or not mark.startswith(VERSION_MARK):
        return None
    return mark.removeprefix(VERSION_MARK).strip()


def _verdict(revision: str | None) -> Verdict:
    if revision is None:
        return Verdict.FOREIGN
    if revision == REVISION:
        return Verdict.CURRENT
    return Verdict.OLDER if revision in REVISIONS else Verdict.NEWER
