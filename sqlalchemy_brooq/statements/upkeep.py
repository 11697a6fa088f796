"""
Statements that keep leases: the heartbeat's renewal and the reaper's return to circulation.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    Interval,
    Select,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    null,
    select,
    true,
    update,
)
from sqlalchemy import bindparam as bind

from sqlalchemy_brooq.kinds import MAX_INTEGER
from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import entering, held, leased
from sqlalchemy_brooq.statements.shapes import CLAIM_KEY, among, rows_of
from sqlalchemy_brooq.vocabulary import Event

#: What is told of a job that lost its lease.
REAPED: Final = (JOB.c.id, JOB.c.topic, JOB.c.attempts, JOB.c.state)


def _live() -> ColumnElement[bool]:
    """
    Match leases that have not run out: a renewal never writes one that has.
    """
    return JOB.c.locked_until >= func.now()


def renew() -> Executable:
    """
    Renew a batch of leases; answers with the number of each renewed claim and its new end.

    A row that somebody else holds is skipped, not waited for. Parameters: ``worker``, ``lease``,
    and the arrays ``claim_id`` and ``claim_claimed_at``, sorted by id.
    """
    claim = rows_of("claim", CLAIM_KEY, numbered=True)
    row = (
        select(JOB.c.id.label("row_id"))
        .where(held(claim.c.id, bind("worker", type_=Text), claim.c.claimed_at), _live())
        .with_for_update(skip_locked=True, key_share=True)
        .lateral("row")
    )
    locked = select(claim.c.n, row.c.row_id).select_from(claim.join(row, true())).cte("locked")
    return (
        update(JOB)
        .where(JOB.c.id == locked.c.row_id, among(JOB.c.id, select(locked.c.row_id)))
        .values(locked_until=func.now() + bind("lease", type_=Interval), updated_at=func.now())
        .returning(locked.c.n, JOB.c.locked_until)
    )


def still_held() -> Select[Any]:
    """
    Answer with the numbers of the claims whose rows are still ours, as far as others have committed.

    Tells a row that was skipped because somebody holds it from one that is lost. Parameters as for `renew`.
    """
    claim = rows_of("claim", CLAIM_KEY, numbered=True)
    return (
        select(claim.c.n)
        .select_from(claim)
        .join(JOB, and_(held(claim.c.id, bind("worker", type_=Text), claim.c.claimed_at), _live()))
    )


def release() -> Executable:
    """
    Give back the jobs that a worker holds by the table and doesn't know of; answers as `reap` does.

    A claim may commit and its answer be lost on the way: nobody runs these jobs, and nobody renews their leases.
    Parameters: ``worker``, and the arrays ``claim_id`` and ``claim_claimed_at`` of the claims it knows.
    """
    known = rows_of("claim", CLAIM_KEY)
    is_known = exists().where(known.c.id == JOB.c.id, known.c.claimed_at == JOB.c.claimed_at)
    unknown = (
        select(JOB.c.id)
        .where(leased(), JOB.c.locked_by == bind("worker", type_=Text), ~is_known)
        .with_for_update(skip_locked=True, key_share=True)
        .cte("unknown")
    )
    return (
        update(JOB)
        .where(among(JOB.c.id, select(unknown.c.id)))
        .values(
            state=entering(Event.REQUEUED),
            attempts=func.greatest(JOB.c.attempts - 1, 0),
            locked_by=null(),
            locked_until=null(),
            updated_at=func.now(),
        )
        .returning(*REAPED)
    )


def reap() -> Executable:
    """
    Return up to ``batch`` jobs with an expired lease to circulation; answers with `REAPED` of each.

    The poison guard: where the arrays ``guard_topic`` and ``guard_limit`` name the job's topic, and its
    requeues have reached the limit, the expiry is recorded as a failure and the job is dead (invariant 7).
    """
    expired = _expired().cte("expired")
    return (
        update(JOB)
        .where(JOB.c.id == expired.c.id, among(JOB.c.id, select(expired.c.id)))
        .values(_ended(expired.c.poisoned))
        .returning(*REAPED)
    )


def _expired() -> Select[Any]:
    """
    Return the locking read of the reaper: who is to be returned, and whether the poison guard forbids it.
    """
    guard = rows_of("guard", {"topic": Text(), "limit": Integer()})
    limit = select(func.min(guard.c.limit)).where(guard.c.topic == JOB.c.topic).scalar_subquery()
    return (
        select(JOB.c.id, (JOB.c.requeues >= limit).is_(true()).label("poisoned"))
        .where(leased(), JOB.c.locked_until < func.now())
        .order_by(JOB.c.locked_until, JOB.c.id)
        .limit(bind("batch", type_=Integer))
        .with_for_update(skip_locked=True, key_share=True)
    )


def _ended(poisoned: ColumnElement[bool]) -> dict[str, Any]:
    """
    Return what the end of a lease writes: a requeue, or where *poisoned* a failure that keeps the lease as a trace.
    """
    # Whatever plain SQL has put there, a number that has no room for one more must not stop the whole batch.
    times = func.concat("lease expired ", cast(JOB.c.requeues, BigInteger) + 1, " times")
    return {
        "state": case((poisoned, entering(Event.DEAD)), else_=entering(Event.REQUEUED)),
        "requeues": case((poisoned, JOB.c.requeues), else_=func.least(JOB.c.requeues, MAX_INTEGER - 1) + 1),
        "available_at": case((poisoned, JOB.c.available_at), else_=func.now()),
        "locked_by": case((poisoned, JOB.c.locked_by), else_=null()),
        "locked_until": case((poisoned, JOB.c.locked_until), else_=null()),
        "last_error": case((poisoned, times), else_=JOB.c.last_error),
        "updated_at": func.now(),
    }
