"""
Vacuum: who keeps dead rows from being removed, and how many there are.

A queue writes each row several times, and each time leaves a dead one behind. Where they stay, every claim reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy_brooq.doctor.findings import Finding, Reporter, Room, ago
from sqlalchemy_brooq.statements import checking

BEHIND: Final = 1_000_000
"""Transactions by which a standby that is there may be behind."""
DEAD: Final = 20_000
"""Dead rows that are no problem, whatever their share."""
SHARE: Final = 0.5
"""The share of rows that may be dead: autovacuum is set to begin at 0.02."""

_HOLDERS: Final = Reporter("old transactions")
_ROWS: Final = Reporter("dead rows")
_AUTOVACUUM: Final = Reporter("autovacuum")


def is_held_back(room: Room) -> Iterator[Finding]:
    """
    Look for whoever keeps rows from being vacuumed that have been dead for long.
    """
    old = room.patient.old
    ask = room.connection.execute
    found = [
        *map(_session, ask(checking.sessions(old))),
        *map(_prepared, ask(checking.prepared(old))),
        *map(_standby, ask(checking.standbys(BEHIND))),
    ]
    yield from found or [_HOLDERS.ok(f"nobody holds vacuum back for longer than {ago(old.total_seconds())}")]
    if hidden := ask(checking.hidden_sessions()).scalar_one():
        yield _HOLDERS.note(
            f"{hidden} sessions of other roles can't be looked at", "GRANT pg_read_all_stats TO the role"
        )


def _session(row: Any) -> Finding:
    who = f"server process {row.pid}, of {row.role}" + (f" ({row.application})" if row.application else "")
    return _HOLDERS.problem(
        f"{who}, has had a transaction open for {ago(row.age)}, and is {row.state}: no row that died since is vacuumed",
        "find out what it waits for, and let it end",
        f"or end it: SELECT pg_terminate_backend({row.pid})",
        "for the future: set idle_in_transaction_session_timeout",
    )


def _prepared(row: Any) -> Finding:
    gid = row.gid.replace("'", "''")
    return _HOLDERS.problem(
        f"the transaction {row.gid!r}, prepared by {row.role}, has been waiting for {ago(row.age)} to be committed:"
        " no row that died since is vacuumed",
        f"ask whose it is, then COMMIT PREPARED '{gid}' or ROLLBACK PREPARED '{gid}'",
    )


def _standby(row: Any) -> Finding:
    if row.active:
        return _HOLDERS.problem(
            f"the standby {row.name} reports a query that is {row.transactions:,} transactions old, and keeps what died"
            " since from being vacuumed",
            "end the query there, or set hot_standby_feedback = off, which lets vacuum cancel it",
        )
    return _HOLDERS.problem(
        f"the replication slot {row.name} is kept for a standby that is away, and with it what died in the last"
        f" {row.transactions:,} transactions",
        "bring the standby back",
        f"or give it up: SELECT pg_drop_replication_slot('{row.name}')",
    )


def has_few_dead_rows(room: Room) -> Iterator[Finding]:
    """
    Look at the share of dead rows, and whether autovacuum is there to remove them.
    """
    row = room.connection.execute(checking.vacuum(), {"table": room.table}).one()
    yield from _autovacuum(row)
    share = row.dead / max(row.live + row.dead, 1)
    last = "it was never vacuumed" if row.age is None else f"it was vacuumed {ago(row.age)} ago"
    text = f"{row.dead:,} dead rows beside {row.live:,} live ones ({share:.0%}); {last}"
    if row.dead >= DEAD and share >= SHARE:
        yield _ROWS.problem(
            text,
            "make sure that no old transaction holds vacuum back, and that autovacuum is on",
            "VACUUM (ANALYZE) job",
            "if they come back: a shorter autovacuum_naptime, a higher autovacuum_vacuum_cost_limit",
        )
    else:
        yield _ROWS.ok(text)


def _autovacuum(row: Any) -> Iterator[Finding]:
    if row.is_on and row.is_counting and not row.is_off_here:
        yield _AUTOVACUUM.ok("it is on")
    if not row.is_on:
        yield _AUTOVACUUM.problem(
            "it is off in the whole server",
            "ALTER SYSTEM SET autovacuum = on, then SELECT pg_reload_conf()",
        )
    if not row.is_counting:
        yield _AUTOVACUUM.problem(
            "track_counts is off, so that it never learns of dead rows",
            "ALTER SYSTEM SET track_counts = on, then SELECT pg_reload_conf()",
        )
    if row.is_off_here:
        yield _AUTOVACUUM.problem("it is off for this table", "ALTER TABLE job RESET (autovacuum_enabled)")
