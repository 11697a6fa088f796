"""
What PostgreSQL prints about the table ``job`` as this version makes it: the measure for one that somebody changed.

The same from version 14 to 18. A test compares it with what the revisions have made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import Column, DefaultClause
from sqlalchemy.dialects import postgresql

from sqlalchemy_brooq.model import JOB, STORAGE

Part = tuple[str, str]
"""A part of the table: what kind of thing it is, and its name."""

_READY: Final = "(state = ANY (ARRAY['pending'::text, 'failed'::text]))"
_INDEXES: Final = {
    "job_ready": f"USING btree (priority DESC, available_at, id) WHERE ({_READY} AND (priority >= '-2'::integer))",
    "job_ready_topic": f"USING btree (topic, priority DESC, available_at, id) WHERE {_READY}",
    "job_idempotency": "UNIQUE USING btree (topic, idempotency_key) WHERE (idempotency_key IS NOT NULL)",
    "job_leased": "USING btree (locked_until) WHERE ((state = 'processing'::text) AND (locked_until IS NOT NULL))",
    "job_terminal": (
        "USING btree (updated_at) WHERE (state = ANY (ARRAY['done'::text, 'dead'::text, 'canceled'::text]))"
    ),
}
_CONSTRAINTS: Final = {
    "job_pkey": "PRIMARY KEY (id)",
    "job_state": (
        "CHECK ((state = ANY (ARRAY['pending'::text, 'processing'::text, 'failed'::text, 'done'::text, 'dead'::text,"
        " 'canceled'::text])))"
    ),
    "job_priority": "CHECK (((priority >= '-2'::integer) AND (priority <= 2)))",
    "job_lease": (
        "CHECK (((state <> 'processing'::text) OR ((locked_by IS NOT NULL) AND (locked_until IS NOT NULL)"
        " AND (claimed_at IS NOT NULL))))"
    ),
}
_PROPERTIES: Final = {"logged": "true", "row security": "false", "partitioned": "false"}


def _printed(column: Column[Any]) -> str:
    """
    Return a column of the model as PostgreSQL prints it.
    """
    type_ = column.type.compile(postgresql.dialect()).lower()  # type: ignore[no-untyped-call] # SQLAlchemy's
    default = column.server_default
    return (
        type_
        + ("" if column.nullable else " NOT NULL")
        + (f" DEFAULT {default.arg}" if isinstance(default, DefaultClause) else "")
    )


@cache
def expected() -> Mapping[Part, str]:
    """
    Return each part of the table with what PostgreSQL prints about it.
    """
    kinds = {
        "column": {column.name: _printed(column) for column in JOB.columns},
        "index": _INDEXES,
        "constraint": _CONSTRAINTS,
        "setting": STORAGE,
        "property": _PROPERTIES,
    }
    return {(kind, name): printed for kind, named in kinds.items() for name, printed in named.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """
    What distinguishes a part of a table from this version's.
    """

    kind: str
    name: str
    ours: str | None
    """What PostgreSQL prints about the part as this version makes it; ``None``: it is somebody else's."""
    found: str | None
    """What it prints about the one that is there, if there is one."""

    def __str__(self) -> str:
        if self.found is None:
            return f"the {self.kind} {self.name} is missing, which is {self.ours}"
        if self.ours is None:
            return f"the {self.kind} {self.name} isn't sqlalchemy-brooq's: {self.found}"
        return f"the {self.kind} {self.name} is {self.found}, and should be {self.ours}"


def differences(found: Mapping[Part, str]) -> list[Difference]:
    """
    Return what distinguishes the table from this version's, by its parts.
    """
    ours = expected()
    return [
        Difference(*part, ours.get(part), found.get(part))
        for part in sorted({*ours, *found})
        if ours.get(part) != found.get(part)
    ]
