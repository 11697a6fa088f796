"""
The doctor: looks at the database of a queue, and says what is wrong and what to do about it.

Reads only, and on a standby and for a role with few rights as well. Each check has a short transaction of its own, so
that one that fails, or takes too long, leaves the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.doctor import server, table, vacuum, work
from sqlalchemy_brooq.doctor.findings import Check, Finding, Level, Patient, Reporter, Room
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.schema import translated_schema
from sqlalchemy_brooq.sqlstates import QUERY_CANCELED, sqlstate
from sqlalchemy_brooq.statements import checking
from sqlalchemy_brooq.statements.watching import time_limit
from sqlalchemy_brooq.worker.connection import short_transaction

__all__ = ["Finding", "Level", "Patient", "examine"]

BUDGET: Final = timedelta(seconds=10)
"""How long the database may take for each question."""

Checks: TypeAlias = Mapping[str, Check]
"""What to call a check that fails -> the check."""

_OF_SERVER: Final[Checks] = MappingProxyType(
    {"database": server.can_be_written, "version": server.is_supported, "clock": server.tells_the_time}
)
_OF_TABLE: Final[Checks] = MappingProxyType(
    {
        "schema": table.is_unchanged,
        "indexes": table.has_its_indexes,
        "rights": table.is_accessible,
        "topics": work.is_served,
        "leases": work.is_reaped,
    }
)
#: Not of a standby, which vacuums nothing itself.
_OF_VACUUM: Final[Checks] = MappingProxyType(
    {"dead rows": vacuum.has_few_dead_rows, "old transactions": vacuum.is_held_back}
)


def examine(patient: Patient) -> Iterator[Finding]:
    """
    Look at everything, and yield what is found as it is found.
    """
    try:
        with short_transaction(patient.engine) as connection:
            # A pooler in transaction mode knows no prepared statements.
            connection.connection.driver_connection.prepare_threshold = None  # type: ignore[union-attr] # psycopg's
            room = _room(patient, connection)
    except SQLAlchemyError as error:
        yield Reporter("database").problem(
            f"can't be reached: {error_text(error)}",
            "check that the server runs, that it lets this host and role in, and that the address is right",
        )
        return
    yield from _all(_OF_SERVER, room)
    is_ours = list(_looked("schema", table.is_ours, room))
    yield from is_ours
    if all(finding.level is Level.OK for finding in is_ours):
        yield from _all(_OF_TABLE, room)
        if not room.is_standby:
            yield from _all(_OF_VACUUM, room)
    if not room.is_standby:  # it has no notifications
        yield from _looked("wake-up", server.hears_notifications, room)


def _room(patient: Patient, connection: Connection) -> Room:
    schema = translated_schema(connection)
    found = connection.execute(checking.server()).one()
    oid = connection.execute(checking.table_oid(schema)).scalar()
    return Room(patient, connection, schema, oid or 0, found.is_standby)


def _all(checks: Checks, room: Room) -> Iterator[Finding]:
    for name, check in checks.items():
        yield from _looked(name, check, room)


def _looked(name: str, check: Check, room: Room) -> Iterator[Finding]:
    """
    Run one check in a transaction of its own; what fails is a finding as well.
    """
    try:
        with short_transaction(room.patient.engine) as connection:
            connection.execute(time_limit(), {"milliseconds": BUDGET // timedelta(milliseconds=1)})
            yield from list(check(replace(room, connection=connection)))
    except SQLAlchemyError as error:
        if sqlstate(error) == QUERY_CANCELED:
            text = f"it took longer than {format_duration(BUDGET)} to look"
        else:
            text = f"it couldn't be looked at: {error_text(error)}"
        yield Reporter(name).unknown(text, "look at the server, and try again")
