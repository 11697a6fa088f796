"""
Statements of who looks at jobs: pages of them, one alone, and how many stand where, by topic.

States stand as literals, so that the partial indexes are provable under a generic plan as well. No statement here
locks a row, and none needs a payload to be decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Integer,
    Interval,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    cast,
    func,
    or_,
    select,
)
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import ARRAY

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import in_states, leased, literal
from sqlalchemy_brooq.statements.shapes import known
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, REPLAY_KEY, TERMINAL, JobState

#: name of what is shown only to who asks for it -> its column; JSON comes as text, exactly as it is stored
PRIVATE: Final[Mapping[str, ColumnElement[Any]]] = MappingProxyType(
    {
        "key": JOB.c.idempotency_key.label("key"),
        "error": JOB.c.last_error.label("error"),
        "payload": cast(JOB.c.payload, Text).label("payload"),
        "result": cast(JOB.c.result, Text).label("result"),
    }
)
DOCUMENTS: Final = ("payload", "result")
"""Those that are JSON."""
_MOMENTS: Final = ("available_at", "claimed_at", "locked_until", "created_at", "updated_at")


@dataclass(frozen=True, slots=True)
class Filter:
    """
    Which jobs are meant; what isn't given excludes none.
    """

    topics: tuple[str, ...] = ()
    states: frozenset[JobState] = frozenset()
    key: str | None = None
    """The idempotency key, exactly."""
    older_than: timedelta | None = None
    """Enqueued at least so long ago."""
    newer_than: timedelta | None = None
    """Enqueued less than so long ago."""
    ended_within: timedelta | None = None
    """Over, and for less than so long."""

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """
        Yield what the rows fulfil.
        """
        if self.topics:
            yield JOB.c.topic == any_(bind(None, [*self.topics], ARRAY(Text)))
        if self.states:
            yield _standing(self.states)
        if self.key is not None:
            yield JOB.c.idempotency_key == self.key
        # The moment by itself: PostgreSQL before 17 can't subtract an infinite one, which plain SQL may write.
        if self.older_than is not None:
            yield JOB.c.created_at <= _ago(self.older_than)
        if self.newer_than is not None:
            yield JOB.c.created_at > _ago(self.newer_than)
        if self.ended_within is not None:
            yield and_(in_states(TERMINAL), JOB.c.updated_at > _ago(self.ended_within))


def page(wanted: Filter, private: Collection[str] = (), *, after: UUID | None = None) -> Select[Any]:
    """
    Answer with jobs, the newest first by their ids: whatever happens to a job, its id stays, so no page loses it.

    Parameter: ``limit``.

    Args:
        wanted: Which.
        private: The names of `PRIVATE` that the answer has as well.
        after: The last id of the page before.
    """
    rest = [] if after is None else [JOB.c.id < after]
    shown = (column for name, column in PRIVATE.items() if name in private)
    return (
        select(*described(), *shown)
        .where(*rest, *wanted.conditions())
        .order_by(JOB.c.id.desc())
        .limit(bind("limit", type_=Integer))
    )


@cache
def one(*, payload: bool, pretty: bool) -> Select[Any]:
    """
    Answer with all there is to know of a job, and with the job that replays it. Parameter: ``job_id``.

    Args:
        payload: Whether payload and result are asked for.
        pretty: Whether their text is spread over lines. That is the server's work, as decoding them might change them.
    """
    replay, is_replay = replay_of_job()
    documents = {name: func.jsonb_pretty(JOB.c[name]).label(name) if pretty else PRIVATE[name] for name in DOCUMENTS}
    shown = [PRIVATE["key"], PRIVATE["error"], *(documents.values() if payload else ())]
    noted = (JOB.c.meta[name].astext.label(name) for name in ("chained_by", "replays"))
    return (
        select(*described(), *shown, *noted, replay.c.id.label("replay_id"), replay.c.state.label("replay_state"))
        .select_from(JOB.outerjoin(replay, is_replay))
        .where(JOB.c.id == bind("job_id", type_=Uuid))
    )


def replay_of_job() -> tuple[Any, ColumnElement[bool]]:
    """
    Return the row of a job's replay, for a join to it, and what it is known by.
    """
    replay = JOB.alias("replay")
    key = func.concat(REPLAY_KEY, JOB.c.id)
    return replay, and_(replay.c.topic == JOB.c.topic, replay.c.idempotency_key == key)


def waiting(wanted: Filter) -> Select[Any]:
    """
    Answer with (topic, ready, scheduled, failed) of the claimable jobs; the failed ones are among the others.
    """
    is_ready = JOB.c.available_at <= func.now()
    return _by_topic(
        func.count().filter(is_ready).label("ready"),
        func.count().filter(~is_ready).label("scheduled"),
        func.count().filter(JOB.c.state == literal(JobState.FAILED)).label("failed"),
        where=[in_states(CLAIMABLE), *wanted.conditions()],
    )


def in_flight(wanted: Filter) -> Select[Any]:
    """
    Answer with (topic, in_flight).
    """
    return _by_topic(func.count().label("in_flight"), where=[leased(), *wanted.conditions()])


def dead(wanted: Filter) -> Select[Any]:
    """
    Answer with (topic, dead); where much is over, this takes long.
    """
    return _by_topic(func.count().label("dead"), where=[in_states({JobState.DEAD}), *wanted.conditions()])


def ended(wanted: Filter) -> Select[Any]:
    """
    Answer with (topic, and a count of each terminal state) of what ended within the parameter ``period``.
    """
    lately = JOB.c.updated_at > func.now() - bind("period", type_=Interval)
    counts = (
        func.count().filter(JOB.c.state == literal(state)).label(state) for state in JobState if state in TERMINAL
    )
    return _by_topic(*counts, where=[in_states(TERMINAL), lately, *wanted.conditions()])


def _by_topic(*counts: ColumnElement[int], where: Collection[ColumnElement[bool]]) -> Select[Any]:
    return select(JOB.c.topic, *counts).where(*where).group_by(JOB.c.topic)


def described() -> tuple[ColumnElement[Any], ...]:
    """
    Return what every answer about a job has, and the moment at which it was asked.
    """
    plain = (JOB.c[name] for name in ("id", "topic", "priority", "state", "attempts", "requeues", "locked_by"))
    return *plain, *(known(JOB.c[name]).label(name) for name in _MOMENTS), func.now().label("asked_at")


def _standing(states: frozenset[JobState]) -> ColumnElement[bool]:
    """
    Match rows in one of *states*, in parts that each lead to the partial index which has them.
    """
    parts = [in_states(part) for part in (states & CLAIMABLE, states & TERMINAL) if part]
    return or_(*parts, *([leased()] if states & HELD else ()))


def _ago(duration: timedelta) -> ColumnElement[datetime]:
    return func.now() - cast(duration, Interval)
