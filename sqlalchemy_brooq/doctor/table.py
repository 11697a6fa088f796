"""
The table ``job``: its revision, what somebody changed about it, its indexes, and our rights to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy.dialects import postgresql

from sqlalchemy_brooq.catalog import Difference
from sqlalchemy_brooq.doctor.findings import Finding, Reporter, Room
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.schema import schema_state, table_differences
from sqlalchemy_brooq.statements import checking

INVALID: Final = " (not valid)"
"""What `statements.schema` prints behind an index that PostgreSQL doesn't use."""

_SCHEMA: Final = Reporter("schema")
_INDEXES: Final = Reporter("indexes")
_RIGHTS: Final = Reporter("rights")


def is_ours(room: Room) -> Iterator[Finding]:
    """
    Look at whether there is a table of the revision that this version needs.
    """
    state = schema_state(room.connection, room.schema)
    if state.problem is not None:
        what, _, todo = state.problem.rpartition(": ")
        yield _SCHEMA.problem(what, todo)
    else:
        yield _SCHEMA.ok(state.found)


def is_unchanged(room: Room) -> Iterator[Finding]:
    """
    Compare the table with the one that this version makes, but for its indexes.
    """
    for difference in _differences(room):
        if difference.kind != "index":
            yield _changed(difference, _name(room))


def has_its_indexes(room: Room) -> Iterator[Finding]:
    """
    Look at whether each index is there and can be used.
    """
    found = [_index(difference, room) for difference in _differences(room) if difference.kind == "index"]
    yield from found
    if not any(finding.level.needs_a_person for finding in found):
        yield _INDEXES.ok("all are there, and valid")


def is_accessible(room: Room) -> Iterator[Finding]:
    """
    Look at whether we may do to the table what a worker does.
    """
    rights = room.connection.execute(checking.rights(), {"table": room.table}).one()
    missing = ", ".join(right for right, granted in zip(checking.RIGHTS, rights, strict=True) if not granted)
    if missing:
        yield _RIGHTS.problem(
            f"this role has no {missing} on the table", f"as its owner: GRANT {missing} ON {_name(room)} TO the role"
        )
    else:
        yield _RIGHTS.ok("this role may read and write the table")


def _differences(room: Room) -> list[Difference]:
    return table_differences(room.connection, room.schema)


def _changed(difference: Difference, table: str) -> Finding:
    if difference.ours is None:
        found = str(difference.found)
        if difference.kind == "column" and " NOT NULL" in found and " DEFAULT " not in found:
            return _SCHEMA.problem(
                f"{difference}, which no producer fills: nothing can be enqueued",
                f"ALTER TABLE {table} ALTER COLUMN {_quoted(difference.name)} DROP NOT NULL, or give it a DEFAULT",
            )
        return _SCHEMA.note(str(difference))
    if difference.kind == "setting":
        return _SCHEMA.problem(str(difference), f"ALTER TABLE {table} SET ({difference.name} = {difference.ours})")
    return _SCHEMA.problem(
        str(difference), "find out who changed it, and put it back: no migration does, as none knows of it"
    )


def _index(difference: Difference, room: Room) -> Finding:
    ours, found, name = difference.ours, difference.found, _name(room, difference.name)
    if ours is None:
        if not str(found).endswith(INVALID):
            return _INDEXES.note(str(difference))
        return _INDEXES.problem(
            f"the index {difference.name} is not valid: what was to build it, or build it anew, was broken off",
            f"DROP INDEX CONCURRENTLY {name}",
        )
    if found == ours + INVALID:
        return _INDEXES.problem(
            f"the index {difference.name} is not valid: it is kept up to date, and serves nobody",
            f"REINDEX INDEX CONCURRENTLY {name}",
        )
    unique = "UNIQUE " if ours.startswith("UNIQUE ") else ""
    create = (
        f"CREATE {unique}INDEX CONCURRENTLY {_quoted(difference.name)} ON {_name(room)} {ours.removeprefix('UNIQUE ')}"
    )
    return _INDEXES.problem(str(difference), *([f"DROP INDEX CONCURRENTLY {name}"] if found else []), create)


def _name(room: Room, name: str = Job.__tablename__) -> str:
    """
    Return how SQL calls something that is where the table is.
    """
    return _quoted(name) if room.schema is None else f"{_quoted(room.schema)}.{_quoted(name)}"


def _quoted(name: str) -> str:
    return postgresql.dialect().identifier_preparer.quote(name)  # type: ignore[no-untyped-call] # SQLAlchemy's
