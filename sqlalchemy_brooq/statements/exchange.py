"""
The pump's statements: settle the outcomes that have gathered, and claim the next jobs.

Each exists alone and, as `exchange`, in one statement: one round trip and one commit move jobs
both ways. No statement here ever waits for a lock: rows that somebody else holds are skipped.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Executable,
    Integer,
    Interval,
    Select,
    Text,
    Uuid,
    and_,
    case,
    cast,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import JSONB

from sqlalchemy_brooq.kinds import MAX_INTEGER
from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import PROCESSING, at_any_level, held, leaving, literal
from sqlalchemy_brooq.statements.shapes import (
    CLAIM_KEY,
    IDS,
    MOMENT,
    MOMENTS,
    NUMBERS,
    WORDS,
    among,
    readable,
    rows_of,
)
from sqlalchemy_brooq.vocabulary import Event, JobState

#: The columns of an outcome. Those without a state are ``done``, and nothing else: see `settle`.
OUTCOME: Final[dict[str, Any]] = {
    **CLAIM_KEY,
    "state": Text(),
    "delay": Interval(),
    "refund": Integer(),
    "error": Text(),
    "result": Text(),
}

#: The columns of a branch of a claim: up to ``limit`` jobs of one topic and priority, after the first ``skip``
#: of those that come no earlier than ``after_at`` and ``after_id``.
BRANCH: Final[dict[str, Any]] = {
    "priority": NUMBERS,
    "topic": WORDS,
    "limit": NUMBERS,
    "skip": NUMBERS,
    "after_at": MOMENTS,
    "after_id": IDS,
}

#: The columns of a level: a priority, and whether something is known to be ready there.
LEVEL: Final[dict[str, Any]] = {"priority": NUMBERS, "sure": Boolean()}

ZERO, ONE = literal_column("0", Integer()), literal_column("1", Integer())
NIL: Final = literal_column("'00000000-0000-0000-0000-000000000000'::uuid", Uuid())
EVER: Final = literal_column("'-infinity'::timestamptz", MOMENT)

#: What a claim fetches. The documents come as text, so that one that can't be decoded spoils at most its own attempt.
CLAIMED: Final = (
    JOB.c.id,
    JOB.c.topic,
    cast(JOB.c.payload, Text).label("payload"),
    JOB.c.attempts,
    JOB.c.requeues,
    JOB.c.priority,
    readable(JOB.c.created_at).label("created_at"),
    readable(JOB.c.available_at).label("available_at"),
    JOB.c.claimed_at,
    JOB.c.locked_until,
    cast(JOB.c.meta, Text).label("meta"),
)


def settle() -> Executable:
    """
    Write a batch of outcomes; the answer is one row: the numbers of those that were not written.

    Parameters: ``worker``, and the arrays of `OUTCOME` as ``outcome_<column>``. The ids and moments of all, sorted
    by id, but first come those which the other arrays say something about: these are as short as that.
    """
    missing, _ = _settling()
    return select(missing)


def claim(picked: Select[Any] | None = None) -> Executable:
    """
    Claim up to ``want`` ready jobs, and answer with `CLAIMED` in the order in which they are to run.

    Parameters: ``worker``, ``lease``, ``want``, the arrays of `LEVEL` as ``level_<column>``, and those of `BRANCH`
    as ``branch_<column>``, in the order in which the branches are to be asked.

    Args:
        picked: Another locking read to take the ids from, instead of `picking`.
    """
    claimed = _claiming(picking() if picked is None else picked)
    return select(*claimed.c).order_by(*_running_order(claimed))


def exchange() -> Executable:
    """
    Do both at once: every row of the answer has a claim's columns, and then the numbers of `settle`.

    Where nothing was claimed there is one row, whose first columns are NULL.
    """
    missing, settled = _settling()
    claimed = _claiming(picking())
    answer = select(missing).subquery("answer")
    return (
        select(*claimed.c, answer.c.missing)
        .select_from(answer.outerjoin(claimed, true()))
        .order_by(*_running_order(claimed))
        .add_cte(settled)
    )


def fates() -> Select[Any]:
    """
    Tell what became of claims whose rows a settle did not touch: number, whether still held, and the row's state.

    Rows that a later claim took are left out: no move but a claim changes ``claimed_at``. Parameters: ``worker``,
    and the arrays ``claim_id`` and ``claim_claimed_at``.
    """
    claim = rows_of("claim", CLAIM_KEY, numbered=True)
    is_held = held(claim.c.id, bind("worker", type_=Text), claim.c.claimed_at).label("held")
    same = and_(JOB.c.id == claim.c.id, JOB.c.claimed_at == claim.c.claimed_at)
    return select(claim.c.n, is_held, JOB.c.state).select_from(claim.join(JOB, same))


def _settling() -> tuple[ColumnElement[Any], CTE]:
    """
    Return the numbers of the outcomes that were not written, and the CTE that writes the others.
    """
    outcome = select(rows_of("outcome", OUTCOME, numbered=True)).cte("outcome")
    row = (
        select(JOB.c.id.label("row_id"))
        .where(held(outcome.c.id, bind("worker", type_=Text), outcome.c.claimed_at))
        .with_for_update(skip_locked=True, key_share=True)
        .lateral("row")
    )
    locked = select(outcome, row.c.row_id).join(row, true()).cte("locked").prefix_with("MATERIALIZED")
    settled = (
        update(JOB)
        .where(JOB.c.id == locked.c.row_id, among(JOB.c.id, select(locked.c.row_id)))
        .values(_written(locked.c))
        .returning(locked.c.n)
        .cte("settled")
    )
    unwritten = select(outcome.c.n).where(~exists().where(settled.c.n == outcome.c.n))
    return func.array(unwritten.scalar_subquery()).label("missing"), settled


def _written(outcome: Any) -> dict[str, Any]:
    """
    Return what *outcome* writes: a failure or a requeue gives up the lease, a terminal row keeps it as a trace.
    """
    fails = outcome["state"] == literal(JobState.FAILED)
    goes_on = or_(fails, outcome["state"] == literal(JobState.PENDING))
    return {
        "state": func.coalesce(outcome["state"], literal(JobState.DONE)),
        "attempts": func.greatest(JOB.c.attempts - func.coalesce(outcome["refund"], ZERO), ZERO),
        "available_at": case((fails, func.now() + outcome["delay"]), else_=JOB.c.available_at),
        "locked_by": case((goes_on, null()), else_=JOB.c.locked_by),
        "locked_until": case((goes_on, null()), else_=JOB.c.locked_until),
        "last_error": func.coalesce(outcome["error"], JOB.c.last_error),
        "result": func.coalesce(cast(outcome["result"], JSONB), JOB.c.result),
        "updated_at": func.now(),
    }


def _claiming(ids: Select[Any]) -> CTE:
    """
    Return the CTE that claims what the locking read *ids* picks.

    Its LIMIT gets into a CTE, which runs once; in ``IN (SELECT … LIMIT)`` the planner may run it again for each row.
    """
    picked = ids.cte("picked").prefix_with("MATERIALIZED")
    return (
        update(JOB)
        .where(among(JOB.c.id, select(picked.c.id)))
        .values(
            state=PROCESSING,
            attempts=func.least(JOB.c.attempts, literal_column(str(MAX_INTEGER - 1), Integer())) + ONE,
            locked_by=bind("worker", type_=Text),
            locked_until=func.now() + bind("lease", type_=Interval),
            # Not now(): two transactions may begin in one microsecond, and this is part of the fence.
            claimed_at=func.clock_timestamp(),
            updated_at=func.now(),
        )
        .returning(*CLAIMED)
        .cte("claimed")
    )


def picking() -> Select[Any]:
    """
    Return the locking read of the claim: the ids to take.

    The ready rows are asked for branch by branch, a topic and a priority each, until ``want`` are locked:
    the outer LIMIT stops the nested loop, so that only rows that are taken are ever locked. A branch
    that skips rows skips those that an earlier branch of its topic has locked: SKIP LOCKED passes over
    the locks of others, not over this statement's own.

    Levels at which nothing is ready, whatever its topic, are left out first: with many topics there are many
    branches to them.
    """
    branch = rows_of("branch", BRANCH)
    after = tuple_(func.coalesce(branch.c.after_at, EVER), func.coalesce(branch.c.after_id, NIL))
    candidate = (
        select(JOB.c.id)
        .where(
            leaving(Event.CLAIMED),
            JOB.c.topic == branch.c.topic,
            JOB.c.priority == branch.c.priority,
            JOB.c.available_at <= func.now(),
            tuple_(JOB.c.available_at, JOB.c.id) >= after,
        )
        .order_by(JOB.c.available_at, JOB.c.id)
        .offset(func.coalesce(branch.c.skip, ZERO))
        .limit(branch.c.limit)
        .with_for_update(skip_locked=True, key_share=True)
        .lateral("candidate")
    )
    return (
        select(candidate.c.id)
        .select_from(branch.join(candidate, true()))
        .where(among(branch.c.priority, live_levels()))
        .limit(bind("want", type_=Integer))
    )


def live_levels() -> Select[Any]:
    """
    Return the priorities at which a job of any topic is ready, or known to be: part of `picking`.
    """
    level = rows_of("level", LEVEL)
    # Not EXISTS, which drops the order: without it the planner may read the table instead of the index.
    first = (
        select(JOB.c.id)
        .where(
            leaving(Event.CLAIMED),
            JOB.c.priority == level.c.priority,
            at_any_level(),
            JOB.c.available_at <= func.now(),
            ~level.c.sure,
        )
        .order_by(JOB.c.available_at, JOB.c.id)
        .limit(ONE)
        .lateral("first")
    )
    return (
        select(level.c.priority)
        .select_from(level.outerjoin(first, true()))
        .where(or_(level.c.sure, first.c.id.is_not(None)))
    )


def _running_order(claimed: CTE) -> tuple[ColumnElement[Any], ...]:
    """
    Return the order of a claim's answer: an UPDATE's RETURNING promises none (invariant 10).
    """
    return claimed.c.priority.desc(), claimed.c.available_at, claimed.c.id
