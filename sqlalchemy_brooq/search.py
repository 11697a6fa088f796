"""
Looking for jobs in a large table: pages that lose none, in an order that an index serves, and how many there are.

Owns which order that is, how far back is looked where nobody said so, and the cursor that leads from page to page.
Changes nothing.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy.exc import DataError

from sqlalchemy_brooq.browse import JobView, TooSlow, Transactions, ask, view
from sqlalchemy_brooq.durations import format_duration, shown
from sqlalchemy_brooq.errors import BrooqError, JobNotFound
from sqlalchemy_brooq.statements import browsing, searching
from sqlalchemy_brooq.statements.searching import EVERY, Since, Wanted
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

DAY: Final = timedelta(days=1)
"""How far back is looked for what is over, where nobody said so."""
PATHS: Final = 16
"""Paths into the payload that a question may have."""
NAMES: Final = 32
"""Names that a path may have: the database goes down each of them, in each row."""
_MOMENT: Final = re.compile(r"-?infinity|[0-9]{4,6}-[0-9T:.+-]{11,40}( BC)?")


class InvalidQuery(BrooqError, ValueError):  # noqa: N818 - names the caller's situation
    """
    A question can't be asked like that.
    """


@dataclass(frozen=True, slots=True)
class JobQuery:
    """
    Which jobs are looked for; what isn't given excludes none.

    A moment is a ``datetime`` with a time zone, or a ``timedelta``: so long ago, by the database's clock.

    Raises:
        InvalidQuery: No job could be like that, or the database can't be asked for it.
    """

    topics: tuple[str, ...] = ()
    states: frozenset[JobState] = frozenset()
    key: str | None = None
    """The idempotency key, exactly."""
    created_since: Since | None = None
    created_until: Since | None = None
    ended_since: Since | None = None
    """Over, since then; the next one likewise."""
    ended_until: Since | None = None
    payload: tuple[tuple[str, str], ...] = ()
    """Dotted paths into the payload, and the value that is there: 42 is the number as well as the text."""

    def __post_init__(self) -> None:
        for text in (*self.topics, self.key or "", *(part for pair in self.payload for part in pair)):
            _check_text(text)
        self._check_paths()
        if self.asks_for_ends and self.states and not self.states & TERMINAL:
            raise InvalidQuery(
                f"ended_since and ended_until are about jobs that are over: {_named(self.states)} is not"
            )

    def _check_paths(self) -> None:
        paths = [path.split(".") for path, _ in self.payload]
        if any(not name for path in paths for name in path):
            raise InvalidQuery("a path into the payload is names with dots between them, such as customer.id")
        if len(paths) > PATHS or any(len(path) > NAMES for path in paths):
            raise InvalidQuery(f"too much of the payload is asked for: at most {PATHS} paths of {NAMES} names")

    @property
    def asks_for_ends(self) -> bool:
        """
        Whether only jobs that are over can be meant.
        """
        return self.ended_since is not None or self.ended_until is not None

    @property
    def by_end(self) -> bool:
        """
        Whether pages come by the moment at which jobs ended, and not by their ids.
        """
        return (bool(self.states) and self.states <= TERMINAL) or self.asks_for_ends

    @property
    def period(self) -> Since | None:
        """
        Since when jobs that are over are looked at; ``None``: however long that is ago.

        Where nothing else narrows it down to what an index leads to, that is a day.
        """
        if self.ended_since is not None:
            return self.ended_since
        if self.key is not None or self == JobQuery() or not (self.states or EVERY) & TERMINAL:
            return None
        return DAY if self.created_since is None else self.created_since

    def wanted(self, asked_at: datetime | None = None) -> Wanted:
        """
        Return what the statements take; durations count from *asked_at*, or from now.
        """
        states = self.states or EVERY
        return Wanted(
            topics=self.topics,
            states=states & TERMINAL if self.asks_for_ends else states,
            key=self.key,
            created_since=self.created_since,
            created_until=self.created_until,
            ended_since=self.period,
            ended_until=self.ended_until,
            payload=tuple((tuple(path.split(".")), value) for path, value in self.payload),
            asked_at=asked_at,
        )


@dataclass(frozen=True, slots=True)
class JobPage:
    """
    Some jobs, and how to go on.
    """

    jobs: Sequence[JobView]
    next: str | None
    """The cursor of the next page; ``None``: this is the last one."""
    period: Since | None
    """Since when jobs that are over were looked at; ``None``: however long that is ago."""


class _Cursor(NamedTuple):
    asked_at: datetime
    id: UUID
    end: str | None


def page(
    transactions: Transactions,
    query: JobQuery,
    *,
    after: str | None = None,
    limit: int,
    private: Collection[str] = (),
    budget: timedelta,
) -> JobPage:
    """
    Return a page of jobs: those that are over by their end, the last one first, and others by their ids.

    Pages lose no job, also where many ended at the same moment, and repeat none. A job that changes meanwhile is on the
    page where it would have been, if it still is what is looked for.

    Args:
        transactions: Where to read.
        query: Which jobs.
        after: The cursor of the page before.
        limit: How many.
        private: What to tell of key, error, payload and result.
        budget: How long the database may take.

    Raises:
        InvalidQuery: The cursor is none, or one of another question.
        TooSlow: It took longer.
    """
    position = None if after is None else _read(after, query)
    wanted = query.wanted(position and position.asked_at)
    build = searching.page_by_end if query.by_end else searching.page_by_id
    statement = build(wanted, private, goes_on=position is not None)
    parameters: dict[str, Any] = {"limit": limit + 1}
    if position is not None:
        parameters |= {"after_id": position.id} | ({"after_end": position.end} if query.by_end else {})
    try:
        rows = asked(transactions, statement, parameters, budget, "finding these jobs")
    except DataError as error:
        if after is None:
            raise
        raise _no_cursor() from error
    jobs = [view(row) for row in rows[:limit]]
    more = len(rows) > limit
    return JobPage(jobs, _written(query, rows[limit - 1], position) if more else None, query.period)


def count(transactions: Transactions, query: JobQuery, *, limit: int, budget: timedelta) -> dict[JobState, int]:
    """
    Count the jobs that *query* means, by state; no more than *limit* and one of them.

    Raises:
        TooSlow: It took longer than *budget*.
    """
    rows = asked(transactions, searching.counts(query.wanted()), {"limit": limit + 1}, budget, "counting these jobs")
    found = {row.state: row.jobs for row in rows}
    return {state: found[state] for state in JobState if state in found}


def chosen(transactions: Transactions, query: JobQuery, *, limit: int, budget: timedelta) -> list[UUID]:
    """
    Return the ids of the jobs that *query* means, in their order; no more than *limit* and one of them.

    Raises:
        TooSlow: It took longer than *budget*.
    """
    rows = asked(transactions, searching.chosen(query.wanted()), {"limit": limit + 1}, budget, "finding these jobs")
    return sorted(row.id for row in rows)


def one(transactions: Transactions, job_id: UUID, *, pretty: bool, budget: timedelta) -> JobView:
    """
    Return all there is to know of a job, as `browse.job` does.

    Raises:
        JobNotFound: There is no such job.
        TooSlow: It took longer than *budget*.
    """
    statement = browsing.one(payload=True, pretty=pretty)
    rows = asked(transactions, statement, {"job_id": job_id}, budget, "reading this job")
    if not rows:
        raise JobNotFound(job_id)
    return view(rows[0])


def in_flight(
    transactions: Transactions, *, limit: int, private: Collection[str] = (), budget: timedelta
) -> list[JobView]:
    """
    Return up to *limit* jobs in flight, what runs for longest first; `TooSlow` where that takes more than *budget*.
    """
    statement = searching.longest_running(private)
    return [*map(view, asked(transactions, statement, {"limit": limit}, budget, "finding what is in flight"))]


def died(transactions: Transactions, *, limit: int, private: Collection[str] = (), budget: timedelta) -> list[JobView]:
    """
    Return up to *limit* jobs that died within the last day, the latest first; `TooSlow` as for `in_flight`.
    """
    parameters = {"limit": limit, "period": DAY}
    return [*map(view, asked(transactions, searching.died(private), parameters, budget, "finding what died"))]


def asked(
    transactions: Transactions, statement: Any, parameters: Mapping[str, Any], budget: timedelta, doing: str
) -> Sequence[Any]:
    """
    Return the rows of an answer.

    Raises:
        TooSlow: The database took longer than *budget* over *doing* that.
    """
    rows = ask(transactions, statement, parameters, budget)
    if rows is None:
        raise too_slow(doing, budget)
    return rows


def too_slow(doing: str, budget: timedelta) -> TooSlow:
    """
    Return what to raise where *doing* that took longer than *budget*.
    """
    return TooSlow(f"{doing} took longer than {format_duration(budget)}, and was given up")


def _written(query: JobQuery, row: Any, position: _Cursor | None) -> str:
    asked_at = row.asked_at if position is None else position.asked_at
    parts = [_digest(query), asked_at.isoformat(), str(row.id), *([row.ended] if query.by_end else [])]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def _read(text: str, query: JobQuery) -> _Cursor:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        digest, asked_at, job_id, *end = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        cursor = _Cursor(datetime.fromisoformat(asked_at), UUID(job_id), end[0] if end else None)
        is_right = cursor.asked_at.tzinfo is not None and len(end) == query.by_end
        if not is_right or not (cursor.end is None or _MOMENT.fullmatch(cursor.end)):
            raise _no_cursor()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _no_cursor() from error
    if digest != _digest(query):
        raise InvalidQuery("this cursor leads on from another question: ask the same one, or begin without a cursor")
    return cursor


def _digest(query: JobQuery) -> int:
    """
    Return a number by which a cursor knows the question that it belongs to.
    """
    facts = repr(replace(query, states=frozenset())) + ",".join(sorted(query.states))
    return zlib.crc32(facts.encode())


def _no_cursor() -> InvalidQuery:
    return InvalidQuery("this is no cursor: take the one that the page before names, or begin without one")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidQuery(f"{shown(text)} is not UTF-8 text") from None
    if "\x00" in text:
        raise InvalidQuery(f"{shown(text)} has a NUL character, which no text in PostgreSQL has")


def _named(states: Collection[JobState]) -> str:
    return " or ".join(state for state in JobState if state in states)
