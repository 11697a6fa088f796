"""
Whether the table ``job`` is there, is ours, and is of the revision that this version needs.

The table's comment is the version mark. This module reads and judges it; changing anything is
the business of ``migrations``, which no code path of a worker imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection

from sqlalchemy_brooq.errors import SchemaMismatch
from sqlalchemy_brooq.model import REVISION, VERSION_MARK
from sqlalchemy_brooq.statements.schema import version_mark

REVISIONS: Final = ("brooq0001",)
"""Every revision that this version knows, oldest first; the last one is the model's."""

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
    def problem(self) -> str | None:
        """
        What is wrong and what to do about it, in one line; ``None`` where nothing is.
        """
        job = "the table job" if self.schema is None else f"the table job in the schema {self.schema!r}"
        match self.verdict:
            case Verdict.MISSING:
                return f"{job} is missing; this version needs its revision {REVISION}: {_COMMANDS}"
            case Verdict.FOREIGN:
                return (
                    f"{job} isn't sqlalchemy-brooq's (its comment doesn't begin with {VERSION_MARK.strip()!r}); this "
                    f"version needs revision {REVISION}: use another schema or rename that table, then {_COMMANDS}"
                )
            case Verdict.OLDER:
                return f"{job} is of revision {self.revision}; this version needs {REVISION}: {_COMMANDS}"
            case Verdict.NEWER:
                return (
                    f"{job} is of revision {self.revision}; this version needs {REVISION} and doesn't know that one: "
                    f"install the newer sqlalchemy-brooq that made it, or there run `alembic downgrade {REVISION}`, "
                    f"or `brooq-worker migrate --to {REVISION}`"
                )
            case Verdict.CURRENT:
                return None


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
    if not marks:
        return SchemaState(Verdict.MISSING, schema=schema)
    revision = _revision(marks[0])
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


def translated_schema(connection: Connection) -> str | None:
    """
    Return the schema that *connection* puts ``job`` into instead of the default one, if any.
    """
    translation = connection.get_execution_options().get("schema_translate_map") or {}
    schema: str | None = translation.get(None)
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
