"""
Statements that cancel and replay many jobs: which ones are meant, and a slice of them at a time.

None of them waits for a row: what somebody else holds is skipped, and asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Executable, Select, Uuid, func, select, update
from sqlalchemy.dialects.postgresql import insert

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.browsing import Filter, replay_of_job
from sqlalchemy_brooq.statements.fence import entering, in_states
from sqlalchemy_brooq.statements.shapes import among, rows_of
from sqlalchemy_brooq.vocabulary import MOVES, REPLAY_KEY, TERMINAL, Event, JobState


def chosen(wanted: Filter) -> Select[Any]:
    """
    Answer with id and state of all jobs that *wanted* means, by id: an order in which no two slices deadlock.
    """
    return select(JOB.c.id, JOB.c.state).where(*wanted.conditions()).order_by(JOB.c.id)


def cancel_slice(states: Iterable[JobState]) -> Executable:
    """
    Cancel those of some jobs that are in one of *states*, and answer with their ids and who held them.

    Parameter: the array ``job_id``.
    """
    leaves, _ = MOVES[Event.CANCELED]
    locked = (
        select(JOB.c.id)
        .where(_given(), in_states(leaves & frozenset(states)))
        .order_by(JOB.c.id)
        .with_for_update(skip_locked=True, key_share=True)
        .cte("locked")
        .prefix_with("MATERIALIZED")
    )
    return (
        update(JOB)
        .where(among(JOB.c.id, select(locked.c.id)))
        .values(state=entering(Event.CANCELED), updated_at=func.now())
        .returning(JOB.c.id, JOB.c.locked_by)
    )


@cache
def replay_slice() -> Executable:
    """
    Insert a new job for each of some that are over and have none yet; answers with id and topic of the new ones.

    As `producing.replay_job`. Parameters: the arrays ``copy_job_id`` and ``copy_id``, the id of the new one.
    """
    copy = rows_of("copy", {"job_id": Uuid(), "id": Uuid()}, numbered=True)
    copied = {
        "id": copy.c.id,
        "topic": JOB.c.topic,
        "priority": JOB.c.priority,
        "payload": JOB.c.payload,
        "idempotency_key": func.concat(REPLAY_KEY, JOB.c.id),
        "meta": func.jsonb_build_object("replays", JOB.c.id),
    }
    originals = (
        select(*copied.values())
        .select_from(copy.join(JOB, JOB.c.id == copy.c.job_id))
        .where(in_states(TERMINAL))
        .order_by(copy.c.n)
    )
    return (
        insert(JOB)
        .from_select(list(copied), originals, include_defaults=False)
        .on_conflict_do_nothing()
        .returning(JOB.c.id, JOB.c.topic)
    )


@cache
def fates() -> Select[Any]:
    """
    Answer with id and state of those of some jobs that are there, and the id of what replays each.

    Parameter: the array ``job_id``.
    """
    replay, is_replay = replay_of_job()
    return (
        select(JOB.c.id, JOB.c.state, replay.c.id.label("replay_id"))
        .select_from(JOB.outerjoin(replay, is_replay))
        .where(_given())
    )


def _given() -> Any:
    return among(JOB.c.id, select(rows_of("job", {"id": Uuid()}).c.id))
