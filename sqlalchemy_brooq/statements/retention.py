"""
Statements that delete old terminal rows; active ones are out of their reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import ColumnElement, Executable, Integer, Interval, Select, Uuid, and_, delete, func, select
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import ARRAY

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import in_states
from sqlalchemy_brooq.statements.shapes import among
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

IDS: Final = ARRAY(Uuid())


def candidates(states: Iterable[JobState]) -> Select[Any]:
    """
    Read the ids of the oldest rows that are due, up to ``batch``, but for those in ``held``.

    Parameters: ``ttl``, ``batch``, and the array ``held``.
    """
    return (
        select(JOB.c.id)
        .where(_due(states), JOB.c.id != func.all(bind("held", type_=IDS)))
        .order_by(JOB.c.updated_at)
        .limit(bind("batch", type_=Integer))
    )


def purge(states: Iterable[JobState]) -> Executable:
    """
    Delete the oldest rows that are due, up to ``batch``; answers with the topic of each. Parameters as `candidates`.
    """
    return _delete(candidates(states).with_for_update(skip_locked=True))


def purge_these(states: Iterable[JobState]) -> Executable:
    """
    Delete those of the rows in ``ids`` that are due; answers with the topic of each. Parameters: ``ttl``, ``ids``.
    """
    chosen = select(JOB.c.id).where(JOB.c.id == func.any(bind("ids", type_=IDS)), _due(states))
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
