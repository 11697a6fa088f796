"""
Statements of the gauges: how many jobs stand where, and since when the oldest ready one waits.

They take no parameters and have no plan that depends on one: states, priorities and all else stand as
literals, so the partial indexes are provable under a generic plan as well. None of them locks a row.
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
    and_,
    cast,
    extract,
    func,
    literal_column,
    select,
    union_all,
)
from sqlalchemy import bindparam as bind

from sqlalchemy_brooq.model import JOB, Job
from sqlalchemy_brooq.statements.fence import PROCESSING, in_states
from sqlalchemy_brooq.vocabulary import CLAIMABLE, PRIORITIES, TERMINAL


def time_limit() -> Select[Any]:
    """
    Limit each further statement of the transaction to the parameter ``milliseconds``.
    """
    milliseconds = cast(bind("milliseconds", type_=Integer), Text)
    return select(func.set_config("statement_timeout", milliseconds, literal_column("true")))


def active_counts() -> CompoundSelect[Any]:
    """
    Answer with (topic, state, count) of the jobs that are not in a terminal state; no row stands for none.
    """
    leased = and_(JOB.c.state == PROCESSING, JOB.c.locked_until.is_not(None))
    return union_all(_counts(in_states(CLAIMABLE)), _counts(leased))


def terminal_counts() -> Select[Any]:
    """
    Answer with (topic, state, count) of the jobs in a terminal state. It reads most of a large table.
    """
    return _counts(in_states(TERMINAL))


def ready_ages() -> Select[Any]:
    """
    Answer with (topic, seconds): since when the longest waiting ready job has been ready.

    A topic whose jobs are all scheduled for later has no age: ``NULL``; one with neither has no row. The
    topics and their oldest jobs are looked up in the index one by one, so a long backlog costs nothing.
    """
    topics = _claimable_topics()
    oldest = func.least(*(_oldest_ready(topics, priority) for priority in PRIORITIES))
    # Of each moment alone: what plain SQL may write, -infinity, can't be subtracted before PostgreSQL 17.
    age = extract("epoch", func.now()) - extract("epoch", oldest)
    return select(topics.c.topic, cast(age, Float).label("seconds")).where(topics.c.topic.is_not(None))


def table_identity(schema: str | None) -> Select[Any]:
    """
    Answer with what tells this ``job`` from those of other databases, servers and schemas.

    Args:
        schema: Where it is; ``None`` means wherever ``job`` leads on this connection.
    """
    name = Job.__tablename__
    path = func.quote_ident(name) if schema is None else func.concat_ws(".", func.quote_ident(schema), func.quote_ident(name))
    return select(func.pg_postmaster_start_time(), func.current_database(), cast(func.to_regclass(path), Text))


def _counts(condition: ColumnElement[bool]) -> Select[Any]:
    return select(JOB.c.topic, JOB.c.state, func.count()).where(condition).group_by(JOB.c.topic, JOB.c.state)


def _claimable_topics() -> CTE:
    """
    Return the topics of claimable jobs, each found from the one before it; ``NULL`` ends the list.
    """
    first = select(func.min(JOB.c.topic)).where(in_states(CLAIMABLE))
    topics = select(first.scalar_subquery().label("topic")).cte("topics", recursive=True)
    following = first.where(JOB.c.topic > topics.c.topic).scalar_subquery()
    return topics.union_all(select(following).where(topics.c.topic.is_not(None)))


def _oldest_ready(topics: CTE, priority: int) -> ColumnElement[Any]:
    """
    Return when the oldest ready job of one topic and priority became ready.
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
