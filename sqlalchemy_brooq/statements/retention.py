"""
Statements that delete old terminal rows; active ones are out of their reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Executable, Integer, Interval, Select, Uuid, and_, delete, func, select, tuple_
from sqlalchemy import bindparam as bind

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import in_states
from sqlalchemy_brooq.statements.shapes import MOMENT, among
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

FIRST: Final[Mapping[str, Any]] = MappingProxyType(
    {"after_at": datetime.min.replace(tzinfo=UTC), "after_id": UUID(int=0)}
)
"""Where a round begins: before any row."""


def candidates(states: Iterable[JobState]) -> Select[Any]:
    """
    Read id and ``updated_at`` of the oldest rows that are due, up to ``batch``, after ``after_at`` and ``after_id``.

    Parameters: these, and ``ttl``.
    """
    after = tuple_(bind("after_at", type_=MOMENT), bind("after_id", type_=Uuid))
    return (
        select(JOB.c.id, JOB.c.updated_at)
        .where(_due(states), tuple_(JOB.c.updated_at, JOB.c.id) > after)
        .order_by(JOB.c.updated_at, JOB.c.id)
        .limit(bind("batch", type_=Integer))
    )


def purge(states: Iterable[JobState]) -> Executable:
    """
    Delete the rows that `candidates` reads; answers with the topic of each. Parameters as there.
    """
    return _delete(candidates(states).with_for_update(skip_locked=True))


def purge_one(states: Iterable[JobState]) -> Executable:
    """
    Delete one row if it is due; answers with its topic. Parameters: ``ttl``, ``id``.
    """
    chosen = select(JOB.c.id).where(JOB.c.id == bind("id", type_=Uuid), _due(states))
    return _delete(chosen.with_for_update(skip_locked=True))


def _due(states: Iterable[JobState]) -> ColumnElement[bool]:
    chosen = frozenset(states)
    if not chosen <= TERMINAL:
        raise ValueError(f"retention deletes terminal rows only, not {sorted(chosen - TERMINAL)}")
    return and_(in_states(chosen), JOB.c.updated_at < func.now() - bind("ttl", type_=Interval))


def _delete(chosen: Select[Any]) -> Executable:
    # The LIMIT sits in a CTE, which runs once, whatever the plan.
    old = chosen.cte("old").prefix_with("MATERIALIZED")
    return delete(JOB).where(among(JOB.c.id, select(old.c.id))).returning(JOB.c.topic)
