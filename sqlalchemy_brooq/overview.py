"""
The table as a whole: its topics, what ended when, who holds what, and what retention is about.

Owns which questions are asked of a table with a long history, so that none of them walks through it. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy_brooq.browse import EVER, Transactions, ask
from sqlalchemy_brooq.schema import translated_schema
from sqlalchemy_brooq.search import asked, too_slow
from sqlalchemy_brooq.statements import browsing, checking, overview
from sqlalchemy_brooq.statements.overview import ENDS
from sqlalchemy_brooq.statements.watching import ready_ages
from sqlalchemy_brooq.vocabulary import JobState

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
MOST: Final = 10_000
"""Rows that are counted one by one; beyond that, more is all that is said."""


@dataclass(slots=True)
class TopicOverview:
    """
    How a topic does; ``None`` is unknown, as it took too long to count.
    """

    topic: str
    ready: int | None = 0
    scheduled: int | None = 0
    in_flight: int | None = 0
    failed: int | None = 0
    """Of the ready and scheduled ones, those that wait for another attempt."""
    oldest_ready_seconds: float | None = None
    """How long the job that has been ready for longest waits; ``None`` also where none is ready."""
    last_hour: dict[str, int] | None = field(default_factory=lambda: {state.value: 0 for state in ENDS})
    """terminal state -> how many ended in it within the last hour."""
    last_day: dict[str, int] | None = field(default_factory=lambda: {state.value: 0 for state in ENDS})

    @property
    def failure_share_last_hour(self) -> float | None:
        """
        How large a part of what was done or died within the last hour died; ``None``: nothing was, or unknown.
        """
        return _failure_share(self.last_hour)

    @property
    def failure_share_last_day(self) -> float | None:
        """
        The same of the last day.
        """
        return _failure_share(self.last_day)


@dataclass(frozen=True, slots=True)
class Series:
    """
    How many jobs of a topic ended in each bucket, by how they ended.
    """

    done: list[int]
    dead: list[int]
    canceled: list[int]


@dataclass(frozen=True, slots=True)
class Throughput:
    """
    What ended when.
    """

    moments: list[datetime]
    """When each bucket begins; the last one is still being filled."""
    width: timedelta
    topics: dict[str, Series]


@dataclass(frozen=True, slots=True)
class Holder:
    """
    A worker that holds leases.
    """

    worker: str
    leases: int
    oldest: datetime | None
    """Since when it holds the one that it has held for longest."""
    until: datetime
    """When the first of them runs out."""
    expired: int
    """How many have run out."""
    asked_at: datetime
    """The moment, by the database's clock."""


@dataclass(frozen=True, slots=True)
class Reference:
    """
    A foreign key that may hold rows: what it references can't be deleted.
    """

    table: str
    constraint: str


@dataclass(frozen=True, slots=True)
class Retention:
    """
    What retention is about; ``None`` is unknown.
    """

    ttls: Mapping[JobState, timedelta] | None
    """How long jobs are kept that ended in a state, zero: for good; ``None``: this process has no queue's settings."""
    rows: Mapping[JobState, int] | None
    """About how many rows there are in each terminal state, by the planner's statistics; ``None``: it has none yet."""
    oldest_end: datetime | None
    """When the first of those jobs ended that are still there; ``None``: none is."""
    asked_at: datetime
    """The moment, by the database's clock."""
    due: Mapping[JobState, int | None] | None
    """How many rows are due now; `MOST` and one more stands for any number beyond."""
    held_by: Sequence[Reference]
    """Foreign keys that reference jobs; a row that one of them holds stays."""


def topics(transactions: Transactions, *, budget: timedelta) -> list[TopicOverview]:
    """
    Return how each topic does where anything waits, runs, or ended within the last day, in the topics' order.

    Each count is a transaction of its own, so together they are no snapshot.

    Args:
        transactions: Where to read.
        budget: How long the database may take for each count; what takes longer is not known.

    Raises:
        TooSlow: Nothing is known.
    """
    found: dict[str, TopicOverview] = {}
    unknown: list[str] = []
    for names, statement, parameters in (
        (("ready", "scheduled", "failed"), browsing.waiting(browsing.Filter()), {}),
        (("in_flight",), browsing.in_flight(browsing.Filter()), {}),
        (("oldest_ready_seconds",), ready_ages(), {}),
        (("last_hour", "last_day"), overview.ended_lately(), {"hour": HOUR, "day": DAY}),
    ):
        rows = ask(transactions, statement, parameters, budget)
        if rows is None:
            unknown += names
        for row in rows or ():
            one = found.setdefault(row.topic, TopicOverview(row.topic))
            for name in names:
                _note(one, name, row)
    if unknown and not found:
        raise too_slow("counting jobs by topic", budget)
    for one in found.values():
        for name in unknown:
            setattr(one, name, None)
    return [found[topic] for topic in sorted(found)]


def throughput(
    transactions: Transactions, period: timedelta, buckets: int, topic: str | None = None, *, budget: timedelta
) -> Throughput:
    """
    Return how many jobs ended when, within *period* up to now, in so many *buckets* of the same width.

    Raises:
        TooSlow: It took longer than *budget*.
    """
    width = period / buckets
    doing = "counting what ended"
    ((last,),) = asked(transactions, overview.bucket_of_now(), {"width": width}, budget, doing)
    moments = [(last - width * n).astimezone(UTC) for n in reversed(range(buckets))]
    parameters = {"width": width, "begin": moments[0]}
    found: dict[str, Series] = {}
    for row in asked(transactions, overview.throughput(topic), parameters, budget, doing):
        series = found.setdefault(row.topic, Series(*([0] * buckets for _ in ENDS)))
        place = min(round((row.bucket - moments[0].timestamp()) / width.total_seconds()), buckets - 1)
        getattr(series, row.state)[place] += row.jobs
    return Throughput(moments, width, {name: found[name] for name in sorted(found)})


def holders(transactions: Transactions, *, budget: timedelta) -> list[Holder]:
    """
    Return who holds leases; `TooSlow` where that takes longer than *budget*.
    """
    rows = asked(transactions, overview.holders(), {}, budget, "counting leases")
    return [Holder(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name for it


def retention(transactions: Transactions, ttls: Mapping[JobState, timedelta] | None, *, budget: timedelta) -> Retention:
    """
    Return what retention is about, where jobs are kept for *ttls*; a count that takes longer than *budget* is unknown.

    Raises:
        TooSlow: Something else took longer.
    """
    doing = "looking at what is over"
    with transactions() as connection:
        table = connection.scalar(checking.table_oid(translated_schema(connection)))
    known = {"table": table}
    rows = {row.state: row.rows for row in asked(transactions, overview.estimates(), known, budget, doing)}
    (ends,) = asked(transactions, overview.oldest_end(), {}, budget, doing)
    references = asked(transactions, overview.references(), known, budget, doing)
    return Retention(
        ttls=ttls,
        rows={state: rows.get(state, 0) for state in ENDS} if rows else None,
        oldest_end=ends.end,
        asked_at=ends.asked_at,
        due=None if ttls is None else {state: _due(transactions, state, ttl, budget) for state, ttl in ttls.items()},
        held_by=[Reference(row.table, row.constraint) for row in references],
    )


def _due(transactions: Transactions, state: JobState, ttl: timedelta, budget: timedelta) -> int | None:
    """
    Return how many rows in *state* are older than *ttl*, where a zero one is for good; up to `MOST` and one more.
    """
    if not ttl:
        return 0
    rows = ask(transactions, overview.due({state}), {"ttl": ttl, "limit": MOST + 1}, budget)
    return None if rows is None else int(rows[0][0])


def _note(one: TopicOverview, name: str, row: Any) -> None:
    match name:
        case "last_hour" | "last_day":
            getattr(one, name)[row.state] = getattr(row, name.removeprefix("last_"))
        case "oldest_ready_seconds":
            one.oldest_ready_seconds = None if row.seconds is None else min(row.seconds, EVER)
        case _:
            setattr(one, name, getattr(row, name))


def _failure_share(ends: Mapping[str, int] | None) -> float | None:
    if ends is None:
        return None
    verdicts = ends[JobState.DONE] + ends[JobState.DEAD]
    return ends[JobState.DEAD] / verdicts if verdicts else None
