"""
The work itself: jobs that nobody takes, and leases that nobody takes back.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from sqlalchemy_brooq.doctor.findings import Finding, Reporter, Room, ago
from sqlalchemy_brooq.statements import browsing, checking
from sqlalchemy_brooq.statements.browsing import Filter

GRACE: Final = timedelta(minutes=1)
"""How long an expired lease may wait for a reaper, if its period isn't longer."""
NAMED: Final = 10
"""Topics that are named one by one."""

_TOPICS: Final = Reporter("topics")
_LEASES: Final = Reporter("leases")


def is_served(room: Room) -> Iterator[Finding]:
    """
    Look for jobs whose topics have no handler.
    """
    served = room.patient.topics
    if served is None:
        yield _TOPICS.note("not looked at: give MODULE:QUEUE, of all your workers, to learn of topics nobody serves")
        return
    waiting = [row for row in room.connection.execute(browsing.waiting(Filter())) if row.topic not in served]
    if not waiting:
        yield _TOPICS.ok(f"all jobs that wait have a handler (topics served: {len(served)})")
        return
    for row in sorted(waiting, key=lambda row: (-row.ready, row.topic))[:NAMED]:
        yield _unserved(row)
    if len(waiting) > NAMED:
        yield _TOPICS.problem(f"jobs of {len(waiting) - NAMED} more topics wait that nobody serves")


def _unserved(row: Any) -> Finding:
    topic = row.topic
    return _TOPICS.problem(
        f"the topic {topic} has no handler: {row.ready:,} jobs of it are ready, {row.scheduled:,} scheduled",
        "register a handler, import the module that does, or check this queue together with the others",
        f"if nobody wants them: brooq-worker cancel --topic {shlex.quote(topic)}",
    )


def is_reaped(room: Room) -> Iterator[Finding]:
    """
    Look for leases that ran out, and that no worker took back.
    """
    grace = max(GRACE, 2 * room.patient.reaper_period)
    rows = room.connection.execute(checking.expired(), {"grace": grace}).all()
    if not rows:
        yield _LEASES.ok(f"none ran out more than {ago(grace.total_seconds())} ago")
        return
    topics = [row.topic for row in rows[:NAMED]] + ([f"{len(rows) - NAMED} more"] if len(rows) > NAMED else [])
    yield _LEASES.problem(
        f"{sum(row.jobs for row in rows):,} jobs have a lease that ran out, the oldest"
        f" {ago(max(row.seconds for row in rows))} ago, and no worker took them back: {', '.join(topics)}",
        "start a worker, of any topic: it takes back the jobs of all",
        "if workers are running, look for errors of the reaper in their logs and at /healthz",
    )
