"""
Statements of the testing kit: one job claimed by its id, time that passes, leases that end, and what was written.

None is ever sent by a worker.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Executable,
    Interval,
    Select,
    Text,
    Uuid,
    case,
    cast,
    column,
    func,
    literal,
    not_,
    select,
    table,
    update,
)
from sqlalchemy import bindparam as bind

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.exchange import claim
from sqlalchemy_brooq.statements.fence import PROCESSING, leaving
from sqlalchemy_brooq.vocabulary import Event

INSTANT: Final = literal(timedelta(microseconds=1), Interval())
"""The least that a timestamp can differ by."""

_COUNTS: Final = ("n_tup_ins", "n_tup_upd", "n_tup_del")


def claim_one() -> Executable:
    """
    Claim the job ``job_id``, as `exchange.claim` would if it were the next one; ready or not.
    """
    waits = (JOB.c.id == bind("job_id", type_=Uuid), leaving(Event.CLAIMED))
    return claim(select(JOB.c.id).where(*waits).with_for_update(skip_locked=True, key_share=True))


def expire() -> Executable:
    """
    End the lease on the job ``job_id``.
    """
    return (
        update(JOB)
        .where(JOB.c.id == bind("job_id", type_=Uuid), JOB.c.state == PROCESSING)
        .values(locked_until=func.now() - INSTANT, updated_at=func.now())
    )


def advance() -> Executable:
    """
    Move the times of all jobs into the past ``by`` so much; rows that another transaction holds are passed over.

    A lease ends an instant earlier still: one that has just as long to go as time passes is over. While a job is
    being run, the moment of its claim stays: it is part of the fence, which time alone doesn't break.
    """
    by = bind("by", type_=Interval)
    moved = select(JOB.c.id).order_by(JOB.c.id).with_for_update(skip_locked=True, key_share=True).cte("moved")
    times = {name: JOB.c[name] - by for name in ("available_at", "created_at", "updated_at")}
    return (
        update(JOB)
        .where(JOB.c.id == moved.c.id)
        .values(
            **times,
            claimed_at=case((JOB.c.state == PROCESSING, JOB.c.claimed_at), else_=JOB.c.claimed_at - by),
            locked_until=JOB.c.locked_until - by - INSTANT,
        )
    )


def state_of() -> Select[Any]:
    """
    Tell where the job ``job_id`` stands.
    """
    return select(JOB.c.state, JOB.c.topic).where(JOB.c.id == bind("job_id", type_=Uuid))


def unserved() -> Select[Any]:
    """
    Answer with the topics that have ready jobs, and how many, but for the ``served`` ones.
    """
    return (
        select(JOB.c.topic, func.count())
        .where(
            leaving(Event.CLAIMED),
            JOB.c.available_at <= func.now(),
            not_(JOB.c.topic.in_(bind("served", expanding=True, type_=Text))),
        )
        .group_by(JOB.c.topic)
        .order_by(JOB.c.topic)
    )


def written_tables() -> Select[Any]:
    """
    Answer with the schema and name of each table that this transaction wrote to, taken back or not.

    PostgreSQL counts that for its statistics (``track_counts``, which is on unless somebody turns it off).
    """
    counts = table(
        "pg_stat_xact_user_tables",
        column("schemaname", Text),
        column("relname", Text),
        *(column(name, BigInteger) for name in _COUNTS),
    )
    total = sum((counts.c[name] for name in _COUNTS[1:]), counts.c[_COUNTS[0]])
    return select(counts.c.schemaname, counts.c.relname).where(total > 0).order_by(*counts.c[:2])


def contents(schema: str, name: str) -> Select[Any]:
    """
    Answer with all rows of a table, as JSON text.
    """
    rows = table(name, schema=schema).alias("rows")
    return select(cast(func.to_jsonb(rows.table_valued()), Text)).select_from(rows)


def clock() -> Select[Any]:
    """
    Tell when the transaction began, and what time it is.
    """
    return select(func.now(), func.clock_timestamp())
