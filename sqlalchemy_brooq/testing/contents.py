"""
What is left in the tables that a test's transaction has written to, in a form in which two runs can be compared.

Owns what may differ between two runs that did the same: ids that the database or a client makes up, and moments of the
test. Knows one thing of jobs: what a second attempt changes in the row of its job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, DateTime, Inspector, Uuid, inspect

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements import testing as statements

WRITTEN: Final = statements.written_tables()
CLOCK: Final = statements.clock()

OF_ATTEMPTS: Final = frozenset(
    {"attempts", "requeues", "available_at", "claimed_at", "locked_by", "locked_until", "updated_at"}
)
"""Columns of a job that tell how often it was tried."""
NEW: Final = "(new)"
NOW: Final = "(now)"
WIDTH: Final = 200
"""Characters of a value that are shown."""
SLACK: Final = timedelta(seconds=1)
"""Between the clocks of server and client."""

Row = dict[str, Any]


class Name(NamedTuple):
    """
    A table's.
    """

    schema: str
    table: str


Contents = Mapping[Name, list[Row]]


@dataclass(frozen=True)
class Shape:
    """
    What is known of a table.
    """

    key: tuple[str, ...]
    generated: frozenset[str]
    """Columns whose values are made up for a new row."""
    references: Mapping[str, tuple[Name, str]]
    moments: frozenset[str]


@dataclass
class Catalog:
    """
    Reads tables, and what shape they have.
    """

    connection: Connection
    _shapes: dict[Name, Shape] = field(default_factory=dict)

    @cached_property
    def _inspector(self) -> Inspector:
        return inspect(self.connection)

    def written(self) -> set[Name]:
        """
        Return the tables that the transaction wrote to, taken back or not.
        """
        return {Name(*row) for row in self.connection.execute(WRITTEN)}

    def read(self, names: Iterable[Name]) -> Contents:
        """
        Return what is in the tables.
        """
        return {
            name: [json.loads(text) for text in self.connection.scalars(statements.contents(*name))] for name in names
        }

    def clock(self) -> tuple[datetime, datetime]:
        """
        Return when the transaction began, and what time it is.
        """
        began, now = self.connection.execute(CLOCK).one()
        return began, now

    def shape(self, name: Name) -> Shape:
        """
        Return the shape of a table.
        """
        if name not in self._shapes:
            self._shapes[name] = self._inspect(name)
        return self._shapes[name]

    def _inspect(self, name: Name) -> Shape:
        schema, table = name
        key = tuple(self._inspector.get_pk_constraint(table, schema)["constrained_columns"])
        columns = self._inspector.get_columns(table, schema)
        references = {
            ours: (Name(foreign["referred_schema"] or schema, foreign["referred_table"]), theirs)
            for foreign in self._inspector.get_foreign_keys(table, schema)
            for ours, theirs in zip(foreign["constrained_columns"], foreign["referred_columns"], strict=True)
        }
        return Shape(
            key,
            frozenset(
                column["name"] for column in columns if _is_generated(column, key) if column["name"] not in references
            ),
            references,
            frozenset(column["name"] for column in columns if isinstance(column["type"], DateTime)),
        )


def _is_generated(column: Mapping[str, Any], key: Collection[str]) -> bool:
    default = column.get("default") or ""
    if column.get("identity") or "nextval(" in default:
        return True
    return column["name"] in key and (bool(default) or isinstance(column["type"], Uuid))


class Comparison:
    """
    Tells what is left of a run from what is left of another.

    Args:
        catalog: The shapes of the tables.
        base: What was there before either run.
        job_id: The job's, as text.
        ignore: ``table`` or ``table.column`` of what may differ.
    """

    def __init__(self, catalog: Catalog, base: Contents, job_id: str, ignore: Collection[str]) -> None:
        self._catalog = catalog
        self._base = base
        self._job_id = job_id
        self._ignore = frozenset(ignore)
        self._began, self._now = catalog.clock()

    def differences(self, expected: Contents, found: Contents) -> list[str]:
        """
        Return in a line each what is different in *found*.
        """
        names = sorted(name for name in self._base if name.table not in self._ignore)
        wanted, there = self._canonical(expected), self._canonical(found)
        return [line for name in names for line in _differences(name.table, wanted[name], there[name])]

    def _canonical(self, contents: Contents) -> dict[Name, Counter[str]]:
        """
        Return the rows of each table as text, without what may differ.
        """
        complete = {name: contents.get(name, rows) for name, rows in self._base.items()}
        new = {name: self._new(name, rows) for name, rows in complete.items()}
        made_up = {
            (name, column): {row[column] for row in new[name]}
            for name in complete
            for column in self._catalog.shape(name).generated
        }
        return {
            name: Counter(
                json.dumps(dict(self._cells(name, row, made_up)), sort_keys=True, ensure_ascii=False) for row in rows
            )
            for name, rows in complete.items()
        }

    def _new(self, name: Name, rows: list[Row]) -> list[Row]:
        key = self._catalog.shape(name).key
        before = {_values(row, key) for row in self._base[name]}
        return [row for row in rows if not key or _values(row, key) not in before]

    def _cells(self, name: Name, row: Row, made_up: Mapping[tuple[Name, str], set[Any]]) -> Iterator[tuple[str, Any]]:
        shape = self._catalog.shape(name)
        is_the_job = name.table == JOB.name and row.get("id") == self._job_id
        for column, value in row.items():
            if f"{name.table}.{column}" in self._ignore or (is_the_job and column in OF_ATTEMPTS):
                continue
            target = shape.references.get(column, (name, column))
            if value != self._job_id and not isinstance(value, dict | list) and value in made_up.get(target, ()):
                yield column, NEW
            elif column in shape.moments and self._is_now(value):
                yield column, NOW
            else:
                yield column, value

    def _is_now(self, value: object) -> bool:
        """
        Whether *value* is a moment of this test; one without a time zone may be in UTC, or in that of this machine.
        """
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            return False
        moments = [moment] if moment.tzinfo is not None else [moment.replace(tzinfo=UTC), moment.astimezone()]
        return any(self._began - SLACK <= one <= self._now + SLACK for one in moments)


def _values(row: Row, key: Iterable[str]) -> tuple[str, ...]:
    return tuple(json.dumps(row[column]) for column in key)


def _differences(table: str, wanted: Counter[str], there: Counter[str]) -> Iterator[str]:
    more, less = list((there - wanted).elements()), list((wanted - there).elements())
    if len(more) == len(less) == 1:
        ours, theirs = json.loads(more[0]), json.loads(less[0])
        for column in ours:
            if ours[column] != theirs[column]:
                yield f"{table}.{column} is {_shown(ours[column])}, not {_shown(theirs[column])}"
        return
    for row in more:
        yield f"{table} has a row more: {_shown_row(row)}"
    for row in less:
        yield f"{table} has a row less: {_shown_row(row)}"


def _shown_row(text: str) -> str:
    row: Row = json.loads(text)
    return ", ".join(f"{column} {_shown(value)}" for column, value in row.items() if value is not None)


def _shown(value: object) -> str:
    text = str(value) if value in (NEW, NOW) else repr(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}…"
