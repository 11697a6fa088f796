"""
Statements of who looks for jobs in a large table: pages in an order that an index serves, and how many these are.

States stand as literals, as in `browsing`. What is over is read within a period, or through a key: there may be any
number of it, and nobody waits for a walk through all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

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
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import ARRAY

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.browsing import PRIVATE, described
from sqlalchemy_brooq.statements.fence import in_states, leased, literal
from sqlalchemy_brooq.statements.shapes import MOMENT
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, TERMINAL, JobState

Since: TypeAlias = datetime | timedelta
"""A moment, or how long ago it was."""
EVERY: Final = frozenset(JobState)


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    Which jobs are meant, in the terms of the statements; what isn't given excludes none.
    """

    topics: tuple[str, ...] = ()
    states: frozenset[JobState] = EVERY
    key: str | None = None
    created_since: Since | None = None
    created_until: Since | None = None
    ended_since: Since | None = None
    """About those that are over alone, as is the next one; others pass if their states are wanted."""
    ended_until: Since | None = None
    payload: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Paths into the payload, and the text of the value that is there."""
    asked_at: datetime | None = None
    """The moment that durations count from; ``None`` is now."""

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """
        Yield what the rows fulfil.
        """
        if self.topics:
            yield JOB.c.topic == any_(bind(None, [*self.topics], ARRAY(Text)))
        elif self.key is not None:
            yield JOB.c.topic == func.any(_keyed_topics())
        if self.key is not None:
            yield JOB.c.idempotency_key == self.key
        if (standing := self._standing()) is not None:
            yield standing
        yield from self._between(JOB.c.created_at, self.created_since, self.created_until)
        for path, value in self.payload:
            yield func.jsonb_extract_path_text(JOB.c.payload, *(bind(None, name, Text) for name in path)) == value

    def _standing(self) -> ColumnElement[bool] | None:
        """
        Match rows in the wanted states, in parts that each lead to the partial index which has them.
        """
        ended = [*self._between(JOB.c.updated_at, self.ended_since, self.ended_until)]
        if self.states == EVERY and not ended:
            return None
        further: dict[frozenset[JobState], list[ColumnElement[bool]]] = {
            CLAIMABLE: [],
            HELD: [JOB.c.locked_until.is_not(None)],
            TERMINAL: ended,
        }
        parts = ((self.states & group, conditions) for group, conditions in further.items())
        return or_(*(and_(in_states(part), *conditions) for part, conditions in parts if part))

    def _between(
        self, column: ColumnElement[datetime], since: Since | None, until: Since | None
    ) -> Iterator[ColumnElement[bool]]:
        if since is not None:
            yield column >= self._moment(since)
        if until is not None:
            yield column < self._moment(until)

    def _moment(self, when: Since) -> ColumnElement[datetime]:
        if isinstance(when, datetime):
            return bind(None, when, MOMENT)
        now = func.now() if self.asked_at is None else bind(None, self.asked_at, MOMENT)
        return now - cast(when, Interval)


def page_by_id(wanted: Wanted, private: Collection[str], *, goes_on: bool) -> Select[Any]:
    """
    Answer with jobs, the newest first by their ids. Parameters: ``limit``, and ``after_id`` if the page *goes_on*.
    """
    rest = [JOB.c.id < bind("after_id", type_=Uuid)] if goes_on else []
    return _page(private).where(*rest, *wanted.conditions()).order_by(JOB.c.id.desc())


def page_by_end(wanted: Wanted, private: Collection[str], *, goes_on: bool) -> Select[Any]:
    """
    Answer with jobs that are over, what ended last first, and among equals by their ids.

    Parameters: ``limit``, and ``after_id`` and ``after_end`` if the page *goes_on*; the latter is text, as `ended` is.
    """
    after = tuple_(cast(bind("after_end", type_=Text), MOMENT), bind("after_id", type_=Uuid))
    rest = [tuple_(JOB.c.updated_at, JOB.c.id) < after] if goes_on else []
    order = JOB.c.updated_at.desc(), JOB.c.id.desc()
    return _page(private).where(*rest, *wanted.conditions()).order_by(*order)


def counts(wanted: Wanted) -> Select[Any]:
    """
    Answer with (state, jobs); of no more than the parameter ``limit`` jobs, whichever are found first.
    """
    some = select(JOB.c.state).where(*wanted.conditions()).limit(bind("limit", type_=Integer)).subquery()
    return select(some.c.state, func.count().label("jobs")).group_by(some.c.state)


def chosen(wanted: Wanted) -> Select[Any]:
    """
    Answer with the ids of up to ``limit`` jobs, in no order.
    """
    return select(JOB.c.id).where(*wanted.conditions()).limit(bind("limit", type_=Integer))


def longest_running(private: Collection[str]) -> Select[Any]:
    """
    Answer with the jobs in flight, up to ``limit``, the one that was claimed first at the top.
    """
    return _page(private).where(leased()).order_by(JOB.c.claimed_at, JOB.c.id)


def died(private: Collection[str]) -> Select[Any]:
    """
    Answer with the jobs that died within ``period``, up to ``limit``, the latest first.
    """
    lately = JOB.c.updated_at > func.now() - bind("period", type_=Interval)
    is_dead = and_(in_states(TERMINAL), JOB.c.state == literal(JobState.DEAD), lately)
    return _page(private).where(is_dead).order_by(JOB.c.updated_at.desc(), JOB.c.id.desc())


def _keyed_topics() -> ColumnElement[Any]:
    """
    Return an array of the topics that have keys, found by one step of the index from each to the next.

    The index of keys begins with the topic: before PostgreSQL 18, a key alone is looked for in all of it, or in the
    whole table.
    """
    job = JOB.alias()
    after = select(job.c.topic).where(job.c.idempotency_key.is_not(None)).order_by(job.c.topic).limit(1)
    topics = select(after.scalar_subquery().label("topic")).cte("keyed_topics", recursive=True)
    is_one = topics.c.topic.is_not(None)
    step = after.where(job.c.topic > topics.c.topic).correlate(topics).scalar_subquery()
    topics = topics.union_all(select(step).where(is_one))
    return func.array(select(topics.c.topic).where(topics.c.topic.is_not(None)).scalar_subquery())


def _page(private: Collection[str]) -> Select[Any]:
    shown = (column for name, column in PRIVATE.items() if name in private)
    return select(*described(), *shown, _exact(JOB.c.updated_at).label("ended")).limit(bind("limit", type_=Integer))


def _exact(moment: ColumnElement[datetime]) -> ColumnElement[str]:
    """
    Return *moment* as text that leads back to it, whatever the session's settings; also an infinite one.
    """
    return func.to_jsonb(moment).op("#>>", return_type=Text())(literal_column("'{}'"))
