"""
Statements of the gauges: how many jobs stand where, and since when the oldest ready one waits.

States and priorities stand as literals, so that the partial indexes are provable under a generic plan as well.
No statement here locks a row.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Float,
    Integer,
    Select,
    Text,
    cast,
    extract,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy import bindparam as bind

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import in_states, leased
from sqlalchemy_brooq.statements.schema import oid
from sqlalchemy_brooq.vocabulary import CLAIMABLE, PRIORITIES, TERMINAL


def time_limit() -> Select[Any]:
    """
    Cancel each further statement of this transaction after the parameter ``milliseconds``.
    """
    milliseconds = cast(bind("milliseconds", type_=Integer), Text)
    return select(func.set_config("statement_timeout", milliseconds, true()))


def active_counts() -> CompoundSelect[Any]:
    """
    Answer with (topic, state, count) of the jobs in no terminal state; where there are none, there is no row.
    """
    return union_all(_counts(in_states(CLAIMABLE)), _counts(leased()))


def terminal_counts() -> Select[Any]:
    """
    Answer with (topic, state, count) of the jobs in a terminal state; on a large table this takes long.
    """
    return _counts(in_states(TERMINAL))


def ready_ages() -> Select[Any]:
    """
    Answer with (topic, seconds): since when the job that has been ready for longest is ready.

    A topic whose claimable jobs are all scheduled for later has ``NULL``, one without any has no row. Topics
    and their oldest jobs are looked up in the index one by one, so a long backlog costs no more than a short one.
    """
    topics = _claimable_topics()
    oldest = func.least(*(_ready_since(topics, priority) for priority in PRIORITIES))
    # Each moment by itself: -infinity, which plain SQL may write, can't be subtracted before PostgreSQL 17.
    seconds = extract("epoch", func.now()) - extract("epoch", oldest)
    return select(topics.c.topic, cast(seconds, Float).label("seconds")).where(topics.c.topic.is_not(None))


def table_identity(schema: str | None) -> Select[Any]:
    """
    Answer with one row that no ``job`` of another server, database or schema has.

    Args:
        schema: Where it is; ``None`` is wherever ``job`` leads on this connection.
    """
    return select(func.pg_postmaster_start_time(), func.current_database(), oid(schema))


def _counts(condition: ColumnElement[bool]) -> Select[Any]:
    return select(JOB.c.topic, JOB.c.state, func.count()).where(condition).group_by(JOB.c.topic, JOB.c.state)


def _claimable_topics() -> CTE:
    """
    Return the topics of claimable jobs, each found from the one before it; a ``NULL`` ends the list.
    """
    least = select(func.min(JOB.c.topic)).where(in_states(CLAIMABLE))
    topics = select(least.scalar_subquery().label("topic")).cte("topics", recursive=True)
    following = least.where(JOB.c.topic > topics.c.topic).scalar_subquery()
    return topics.union_all(select(following).where(topics.c.topic.is_not(None)))


def _ready_since(topics: CTE, priority: int) -> ColumnElement[Any]:
    """
    Return the earliest moment from which a job of this topic and *priority* is ready; ``NULL`` where none is.
    """
    return (
        select(func.min(JOB.c.available_at))
        .where(
            in_states(CLAIMABLE),
            JOB.c.topic == topics.c.topic,
            JOB.c.priority == literal_column(str(priority)),
            JOB.c.available_at <= func.now(),
        )
        .correlate(topics)
        .scalar_subquery()
    )
