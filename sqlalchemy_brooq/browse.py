"""
Looking at jobs: pages of them, one alone, and how many stand where; for the command line, and whoever shows them.

Owns what is said about a job, and how long a question may take. Changes nothing. Payloads, keys, errors and results
are the consumer's, and are in an answer only where they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Executable
from sqlalchemy.exc import OperationalError

from sqlalchemy_brooq.documents import RawJson
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import BrooqError, JobNotFound
from sqlalchemy_brooq.kinds import MAX_INTEGER
from sqlalchemy_brooq.sqlstates import QUERY_CANCELED, sqlstate
from sqlalchemy_brooq.statements import browsing
from sqlalchemy_brooq.statements.browsing import DOCUMENTS, PRIVATE, Filter
from sqlalchemy_brooq.statements.overview import ENDS
from sqlalchemy_brooq.statements.watching import ready_ages, time_limit
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, TERMINAL, JobState, Lease

__all__ = [
    "PRIVATE",
    "Filter",
    "JobView",
    "RawJson",
    "Replay",
    "TooSlow",
    "TopicStats",
    "Transactions",
    "job",
    "jobs",
    "stats",
]

Transactions: TypeAlias = Callable[[], AbstractContextManager[Connection]]
"""Lends a connection in a transaction of its own, each time it is called."""

PAGE: Final = 1_000
"""Jobs that are read at once."""
PERIOD: Final = timedelta(hours=1)
"""What the rates of `stats` are about."""
EVER: Final = timedelta(days=3_650_000).total_seconds()
"""Since when a job is ready that is so since ``-infinity``."""
_TIME_LIMIT: Final = time_limit()
_PLAIN: Final = (
    *("id", "topic", "priority", "attempts", "requeues"),
    *("available_at", "claimed_at", "created_at", "updated_at", "asked_at"),
)


class TooSlow(BrooqError, TimeoutError):  # noqa: N818 - names the caller's situation
    """
    The database didn't answer a question in the time that it had.
    """


class Replay(NamedTuple):
    """
    The job that replays another one.
    """

    id: UUID
    state: str


@dataclass(frozen=True, slots=True)
class JobView:
    """
    A job as it was at one moment.
    """

    id: UUID
    topic: str
    priority: int
    state: JobState
    attempts: int
    requeues: int
    available_at: datetime
    claimed_at: datetime | None
    lease: Lease | None
    """Who holds it; of a job that is over, who held it last."""
    created_at: datetime
    updated_at: datetime
    asked_at: datetime
    """The moment, by the database's clock."""
    private: Mapping[str, str | RawJson | None] = field(default_factory=dict)
    """What was asked for of key, error, payload and result."""
    chained_by: str | None = None
    replays: str | None = None
    replayed_by: Replay | None = None

    @property
    def is_ready(self) -> bool:
        """
        Whether a worker may claim it.
        """
        return self.state in CLAIMABLE and self.available_at <= self.asked_at

    @property
    def since(self) -> datetime:
        """
        Since when it stands so; of a job that is scheduled for later, when it will be ready.
        """
        if self.state in CLAIMABLE:
            return self.available_at
        return self.claimed_at or self.updated_at if self.state in HELD else self.updated_at

    @property
    def waited(self) -> timedelta | None:
        """
        How long its latest attempt was waited for, or how long it has been ready; ``None``: not known, or not ready.
        """
        if self.state in CLAIMABLE:
            return self.asked_at - self.available_at if self.is_ready else None
        # A failure and a requeue write the time of the next attempt over that of the last one.
        is_known = self.claimed_at is not None and self.lease is not None and self.available_at <= self.claimed_at
        return self.claimed_at - self.available_at if self.claimed_at is not None and is_known else None

    @property
    def ran(self) -> timedelta | None:
        """
        How long its latest attempt took, or takes so far; ``None``: there was none, or it isn't known.
        """
        if self.claimed_at is None:
            return None
        if self.state in HELD:
            return self.asked_at - self.claimed_at
        # A terminal row keeps its lease as a trace; one that was canceled while it waited has none.
        is_known = self.state == JobState.FAILED or (self.state in TERMINAL and self.lease is not None)
        return self.updated_at - self.claimed_at if is_known else None

    def facts(self) -> dict[str, Any]:
        """
        Return what is known, ready for JSON but for the `RawJson` among it.
        """
        lease = self.lease
        return {
            "id": str(self.id),
            "topic": self.topic,
            "priority": self.priority,
            "state": self.state.value,
            "attempts": self.attempts,
            "requeues": self.requeues,
            "is_ready": self.is_ready,
            **{name: iso(getattr(self, name)) for name in ("created_at", "available_at", "claimed_at", "updated_at")},
            "waited_seconds": _seconds(self.waited),
            "ran_seconds": _seconds(self.ran),
            "locked_by": lease and lease.worker,
            "locked_until": lease and iso(lease.until),
            **self.private,
        }

    def all_facts(self) -> dict[str, Any]:
        """
        Return `facts`, and how it hangs together with other jobs.
        """
        replay = self.replayed_by
        return {
            **self.facts(),
            "chained_by": self.chained_by,
            "replays": self.replays,
            "replayed_by": replay and {"id": str(replay.id), "state": replay.state},
        }


@dataclass(slots=True)
class TopicStats:
    """
    How many jobs of a topic stand where; ``None`` is unknown, as it took too long to count.
    """

    topic: str
    ready: int | None = 0
    scheduled: int | None = 0
    in_flight: int | None = 0
    failed: int | None = 0
    """Of the ready and scheduled ones, those that wait for another attempt."""
    dead: int | None = 0
    oldest_ready_seconds: float | None = None
    """How long the job that has been ready for longest waits; ``None`` also where none is ready."""
    last_hour: Mapping[str, int] | None = field(default_factory=lambda: dict.fromkeys(map(str, ENDS), 0))
    """terminal state -> how many ended in it within the last hour."""


def jobs(
    transactions: Transactions,
    wanted: Filter,
    *,
    limit: int,
    after: UUID | None = None,
    private: Collection[str] = (),
    budget: timedelta,
) -> Iterator[JobView]:
    """
    Yield up to *limit* jobs, the newest first, each page of them read in a transaction of its own.

    The last one's id, given as *after*, goes on from there. Ids don't change: however long that takes, and whatever
    happens to the jobs meanwhile, none is passed over, and none comes twice.

    Args:
        transactions: Where to read.
        wanted: Which jobs.
        limit: How many.
        after: Only those after this one.
        private: What to tell of key, error, payload and result.
        budget: How long the database may take for a page; zero is no limit.

    Raises:
        TooSlow: It took longer.
    """
    while limit > 0:
        size = min(limit, PAGE)
        rows = ask(transactions, browsing.page(wanted, private, after=after), {"limit": size}, budget)
        if rows is None:
            raise TooSlow(
                f"finding these jobs took longer than {format_duration(budget)}, and was given up: ask for a state or"
                " a topic, for what ended lately, or give it more time"
            )
        yield from map(view, rows)
        if len(rows) < size:
            return
        limit, after = limit - size, rows[-1].id


def job(connection: Connection, job_id: UUID, *, payload: bool = True, pretty: bool = False) -> JobView:
    """
    Return all there is to know of a job.

    Args:
        connection: Where to read.
        job_id: Which.
        payload: Whether its payload and result are wanted.
        pretty: Whether these are spread over lines, for people.

    Raises:
        JobNotFound: There is no such job.
    """
    row = connection.execute(browsing.one(payload=payload, pretty=pretty), {"job_id": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return view(row)


def stats(transactions: Transactions, topics: Collection[str] = (), *, budget: timedelta) -> list[TopicStats]:
    """
    Count the jobs of each topic, in the topics' order.

    Each count is a transaction of its own, so together they are no snapshot.

    Args:
        transactions: Where to read.
        topics: Only these; all if none is given.
        budget: How long the database may take for each count; what takes longer is unknown. Zero is no limit.
    """
    found: dict[str, TopicStats] = {}
    unknown: list[str] = []
    for names, statement, parameters in _counts(Filter(topics=tuple(topics))):
        rows = ask(transactions, statement, parameters, budget)
        if rows is None:
            unknown += names
        for row in rows or ():
            if not topics or row.topic in topics:
                _add(found.setdefault(row.topic, TopicStats(row.topic)), names, row)
    for one in found.values():
        for name in unknown:
            setattr(one, name, None)
    return [found[topic] for topic in sorted(found)]


def _counts(wanted: Filter) -> Iterator[tuple[tuple[str, ...], Executable, dict[str, Any]]]:
    """
    Yield what to ask, the dearest last: what each answer is about, and how it is asked for.
    """
    yield ("ready", "scheduled", "failed"), browsing.waiting(wanted), {}
    yield ("in_flight",), browsing.in_flight(wanted), {}
    yield ("oldest_ready_seconds",), ready_ages(), {}
    yield ("last_hour",), browsing.ended(wanted), {"period": PERIOD}
    yield ("dead",), browsing.dead(wanted), {}


def _add(stats: TopicStats, names: Collection[str], row: Any) -> None:
    for name in names:
        match name:
            case "last_hour":
                value: Any = {state.value: getattr(row, state) for state in ENDS}
            case "oldest_ready_seconds":
                value = None if row.seconds is None else min(row.seconds, EVER)
            case _:
                value = getattr(row, name)
        setattr(stats, name, value)


def ask(
    transactions: Transactions, statement: Executable, parameters: Mapping[str, Any], budget: timedelta
) -> Sequence[Any] | None:
    """
    Return the rows of an answer in a transaction of its own; ``None`` where the database took longer than *budget*.
    """
    try:
        with transactions() as connection:
            connection.execute(_TIME_LIMIT, {"milliseconds": min(budget // timedelta(milliseconds=1), MAX_INTEGER)})
            return connection.execute(statement, parameters).all()
    except OperationalError as error:
        if sqlstate(error) == QUERY_CANCELED:
            return None
        raise


def view(row: Any) -> JobView:
    """
    Return the job that a row tells of, which has at least the columns of `browsing.described`.
    """
    found = row._mapping  # noqa: SLF001 - SQLAlchemy's public name for it
    replay = found.get("replay_id")
    return JobView(
        **{name: found[name] for name in _PLAIN},
        state=JobState(row.state),
        lease=None if row.locked_by is None or row.locked_until is None else Lease(row.locked_by, row.locked_until),
        private={name: _private(name, found[name]) for name in PRIVATE if name in found},
        chained_by=found.get("chained_by"),
        replays=found.get("replays"),
        replayed_by=None if replay is None else Replay(replay, found["replay_state"]),
    )


def _private(name: str, text: str | None) -> str | RawJson | None:
    return RawJson(text) if name in DOCUMENTS and text is not None else text


def iso(moment: datetime | None) -> str | None:
    """
    Return *moment* as JSON has it, in UTC.
    """
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
