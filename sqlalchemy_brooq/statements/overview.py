"""
Statements of who looks at the table as a whole: what ended when, who holds what, and what retention is about.

All of it is read through the partial indexes, or from what the planner knows; no statement walks through the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Float,
    Integer,
    Interval,
    Select,
    TextClause,
    bindparam,
    cast,
    extract,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import OID

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import in_states, leased
from sqlalchemy_brooq.statements.shapes import known, readable
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

ORIGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Where the buckets of a chart begin to be counted, so that they stay where they are as time passes."""
_TOPIC_AND_STATE: Final = (JOB.c.topic, JOB.c.state)
ENDS: Final = tuple(state for state in JobState if state in TERMINAL)

#: What the planner knows of the states of the rows; none where the table was never analyzed.
_ESTIMATES: Final = """
    SELECT state, (reltuples * share)::bigint AS rows
    FROM pg_catalog.pg_class
    JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    JOIN pg_catalog.pg_stats ON schemaname = nspname AND tablename = relname AND attname = 'state' AND NOT inherited
    CROSS JOIN unnest(most_common_vals::text::text[], most_common_freqs) AS known (state, share)
    WHERE pg_class.oid = :table AND reltuples > 0
"""
_REFERENCES: Final = """
    SELECT conrelid::regclass::text AS table, conname AS constraint
    FROM pg_catalog.pg_constraint
    WHERE contype = 'f' AND confrelid = :table
    AND conparentid = 0 -- of a partitioned table, its own and not that of each partition
    ORDER BY 1, 2
"""


def ended_lately() -> Select[Any]:
    """
    Answer with (topic, state, day, hour): how many jobs ended so within these two parameters.
    """
    is_new = JOB.c.updated_at > func.now() - bindparam("hour", type_=Interval)
    counts = func.count().label("day"), func.count().filter(is_new).label("hour")
    lately = JOB.c.updated_at > func.now() - bindparam("day", type_=Interval)
    return select(*_TOPIC_AND_STATE, *counts).where(in_states(TERMINAL), lately).group_by(*_TOPIC_AND_STATE)


def bucket_of_now() -> Select[Any]:
    """
    Answer with the beginning of the bucket, ``width`` wide, that now is in.
    """
    return select(_bucket(func.now()))


def throughput(topic: str | None) -> Select[Any]:
    """
    Answer with (topic, state, bucket, jobs) of what ended from ``begin`` on; the bucket's beginning is in seconds.

    Parameters: also ``width``, of a bucket.
    """
    since = JOB.c.updated_at >= bindparam("begin", type_=DateTime(timezone=True))
    past = JOB.c.updated_at <= func.now()  # plain SQL may write any moment
    only = [] if topic is None else [JOB.c.topic == topic]
    bucket = _bucket(JOB.c.updated_at).label("bucket")
    found = (
        select(*_TOPIC_AND_STATE, bucket, func.count().label("jobs"))
        .where(in_states(TERMINAL), since, past, *only)
        .group_by(*_TOPIC_AND_STATE, bucket)
        .subquery()
    )
    # Drivers take several times as long over a moment as over a number, and there may be thousands.
    seconds = cast(extract("epoch", found.c.bucket), Float).label("bucket")
    return select(found.c.topic, found.c.state, seconds, found.c.jobs)


def holders() -> Select[Any]:
    """
    Answer with who holds leases: worker, leases, oldest (since when), until (the earliest end), expired (how many),
    asked_at (now).
    """
    expired = func.count().filter(JOB.c.locked_until < func.now())
    return (
        select(
            JOB.c.locked_by.label("worker"),
            func.count().label("leases"),
            known(func.min(JOB.c.claimed_at)).label("oldest"),
            readable(func.min(JOB.c.locked_until)).label("until"),
            expired.label("expired"),
            func.now().label("asked_at"),
        )
        .where(leased())
        .group_by(JOB.c.locked_by)
        .order_by(JOB.c.locked_by)
    )


def oldest_end() -> Select[Any]:
    """
    Answer with (end, asked_at): when the first of those jobs ended that are over, ``NULL`` where none is; and now.
    """
    columns: list[ColumnElement[Any]] = [known(func.min(JOB.c.updated_at)).label("end"), func.now().label("asked_at")]
    return select(*columns).where(in_states(TERMINAL))


def due(states: Iterable[JobState]) -> Select[Any]:
    """
    Answer with how many rows retention would delete that are in *states*, for longer than ``ttl``; up to ``limit``.
    """
    since = JOB.c.updated_at < func.now() - bindparam("ttl", type_=Interval)
    some = select(JOB.c.id).where(in_states(states), since).limit(bindparam("limit", type_=Integer)).subquery()
    return select(func.count()).select_from(some)


def estimates() -> TextClause:
    """
    Answer with (state, rows), about, from the planner's statistics. Parameter: ``table``, its OID.
    """
    return text(_ESTIMATES).bindparams(bindparam("table", type_=OID))


def references() -> TextClause:
    """
    Answer with (table, constraint) of the foreign keys that reference jobs. Parameter: ``table``, its OID.
    """
    return text(_REFERENCES).bindparams(bindparam("table", type_=OID))


def _bucket(moment: ColumnElement[datetime]) -> ColumnElement[datetime]:
    width = bindparam("width", type_=Interval)
    origin: ColumnElement[datetime] = literal_column(f"'{ORIGIN.isoformat()}'::timestamptz")
    return func.date_bin(width, moment, origin, type_=DateTime(timezone=True))
