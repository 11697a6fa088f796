"""
The one guard of every write about a claim, and states as SQL literals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, literal_column
from sqlalchemy.sql.expression import ColumnClause

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.vocabulary import MOVES, PRIORITIES, Event, JobState


def literal(state: JobState) -> ColumnClause[str]:
    """
    Return *state* as a SQL literal: a bound one can't prove a partial index under a generic plan.
    """
    return literal_column(f"'{state}'")


def in_states(states: Iterable[JobState]) -> ColumnElement[bool]:
    """
    Match rows in one of *states*, in the order of the indexes' predicates.
    """
    wanted = frozenset(states)
    return JOB.c.state.in_([literal(state) for state in JobState if state in wanted])


def leaving(event: Event) -> ColumnElement[bool]:
    """
    Match rows that *event* may happen to.
    """
    leaves, _ = MOVES[event]
    return in_states(leaves)


def entering(event: Event) -> ColumnClause[str]:
    """
    Return the state that *event* leads to.
    """
    _, enters = MOVES[event]
    return literal(enters)


def at_any_level() -> ColumnElement[bool]:
    """
    Match every row, in the words of the index of all topics: only who says so may use it.
    """
    return JOB.c.priority >= literal_column(str(PRIORITIES[0]))


def leased() -> ColumnElement[bool]:
    """
    Match claimed rows, in the words of the index of leases: a CHECK says that each has an end (invariant 1).
    """
    return and_(JOB.c.state == PROCESSING, JOB.c.locked_until.is_not(None))


PROCESSING: Final = literal(JobState.PROCESSING)


def held(job_id: Any, worker: Any, claimed_at: Any) -> ColumnElement[bool]:
    """
    Match the row of a claim only while that claim still owns it.

    The moment of the claim is part of the fence: a worker that lost its lease and then claimed
    the same job again must not touch the later claim through the earlier one (invariant 12).

    Args:
        job_id: The claimed job; like the others a value, a bound parameter or a column.
        worker: Who claimed it.
        claimed_at: When, by the database's clock.
    """
    return and_(
        JOB.c.id == job_id,
        JOB.c.state == PROCESSING,
        JOB.c.locked_by == worker,
        JOB.c.claimed_at == claimed_at,
    )
