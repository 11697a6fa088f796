"""
The server: whether it can be written to, its version, its clock, and whether notifications arrive.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection

from sqlalchemy_brooq.doctor.findings import Finding, Reporter, Room
from sqlalchemy_brooq.statements import checking
from sqlalchemy_brooq.worker.connection import PrivateConnection

OLDEST: Final = 14
"""The first major version that is supported."""
NEWEST: Final = 18
"""The last one that this version was tested with."""
CLOCK_LIMIT: Final = 2.0
"""Seconds by which the clocks of two hosts may differ."""
ECHO: Final = 3.0
"""Seconds within which a notification must arrive, as for a worker."""
CONNECT_LIMIT: Final = 10.0
"""Seconds that connecting and listening may take."""

_SAMPLES: Final = 5
_DATABASE: Final = Reporter("database")
_VERSION: Final = Reporter("version")
_CLOCK: Final = Reporter("clock")
_WAKEUP: Final = Reporter("wake-up")


def can_be_written(room: Room) -> Iterator[Finding]:
    """
    Look at whether a worker could write anything.
    """
    found = room.connection.execute(checking.server()).one()
    place = f"the database {found.database}, as {found.role}"
    if found.is_standby:
        yield _DATABASE.problem(
            f"{place}, is on a standby, which takes no writes",
            "name the primary, or all hosts with target_session_attrs=read-write in the database URL",
        )
    elif found.is_read_only:
        yield _DATABASE.problem(
            f"{place}, is read-only: default_transaction_read_only is on for its sessions",
            "find out who set it: SELECT source, sourcefile FROM pg_settings WHERE name ="
            " 'default_transaction_read_only', and ALTER ROLE or ALTER DATABASE … RESET default_transaction_read_only",
        )
    else:
        yield _DATABASE.ok(f"{place}, answers and takes writes")


def is_supported(room: Room) -> Iterator[Finding]:
    """
    Look at the server's version.
    """
    version = room.connection.execute(checking.server()).one().version
    major = int(version.partition(".")[0].partition("devel")[0].partition("beta")[0].partition("rc")[0])
    if major < OLDEST:
        yield _VERSION.problem(
            f"PostgreSQL {version} is too old: sqlalchemy-brooq needs {OLDEST} or newer", "upgrade the server"
        )
    elif major > NEWEST:
        yield _VERSION.note(f"PostgreSQL {version} is newer than any that this version was tested with ({NEWEST})")
    else:
        yield _VERSION.ok(f"PostgreSQL {version}")


def tells_the_time(room: Room) -> Iterator[Finding]:
    """
    Compare the server's clock with this host's.

    The difference is known as exactly as the quickest of a few answers was quick.
    """
    samples = [_difference(room.connection) for _ in range(_SAMPLES)]
    difference, doubt = min(samples, key=lambda sample: sample[1])
    if abs(difference) - doubt <= CLOCK_LIMIT:
        yield _CLOCK.ok(f"this host's clock and the server's differ by no more than {abs(difference) + doubt:.1f} s")
        return
    direction = "behind" if difference > 0 else "ahead of"
    yield _CLOCK.problem(
        f"this host's clock is {abs(difference):.1f} s {direction} the server's: jobs that producers here schedule for"
        " a moment become ready at another one, and logs don't compare (leases and delays go by the server's clock)",
        "look at time synchronisation (NTP) on this host and on the server's",
    )


def _difference(connection: Connection) -> tuple[float, float]:
    """
    Return by how many seconds the server's clock is ahead, and by how many that may be wrong.
    """
    before = time.time()
    began = time.monotonic()
    there: float = connection.execute(checking.clock()).scalar_one()
    took = time.monotonic() - began
    return there - (before + took / 2), took / 2


def hears_notifications(room: Room) -> Iterator[Finding]:
    """
    Listen on one connection, notify on another, and see whether it arrives.

    Behind a pooler in transaction mode LISTEN succeeds, and nothing ever comes.
    """
    channel = f"brooq_check_{secrets.token_hex(8)}"
    with (
        contextlib.closing(PrivateConnection(room.patient.engine, plain=True)) as ear,
        contextlib.closing(PrivateConnection(room.patient.engine, plain=True)) as mouth,
        ear.driver(limit=CONNECT_LIMIT) as listening,
        mouth.driver(limit=CONNECT_LIMIT) as notifying,
    ):
        listening.autocommit = notifying.autocommit = True
        listening.execute(f"LISTEN {channel}")  # Core has no construct for it
        notifying.execute("SELECT pg_notify(%s, '')", (channel,))
        heard = _arrives(listening, channel)
    if heard:
        yield _WAKEUP.ok("notifications arrive: workers are woken at once")
    elif room.patient.wakeup == "poll":
        yield _WAKEUP.ok("notifications don't arrive here, and QUEUE_WAKEUP=poll does without them")
    else:
        yield _WAKEUP.problem(
            "notifications don't arrive: there is a pooler in transaction or statement mode in between, it seems",
            "set QUEUE_WAKEUP=poll, which uses nothing of a session's state",
            "or give the workers the server's own address, or a pool in session mode",
        )


def _arrives(listening: Any, channel: str) -> bool:
    until = time.monotonic() + ECHO
    while (left := until - time.monotonic()) > 0:
        if any(one.channel == channel for one in listening.notifies(timeout=left, stop_after=1)):
            return True
    return False
