"""
Everything that the API and the pages ask of the database, and what they do to jobs.

Owns the budget of each answer, what of a payload is hidden, how many jobs one request may change, and the line in the
log about each change. Knows nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from sqlalchemy.exc import DataError, SQLAlchemyError

from sqlalchemy_brooq import overview, search
from sqlalchemy_brooq.browse import JobView, TooSlow, Transactions
from sqlalchemy_brooq.documents import Masks, RawJson
from sqlalchemy_brooq.errors import BrooqError
from sqlalchemy_brooq.operations import CANCELABLE, Counts, Ids, cancel_jobs, replay_jobs
from sqlalchemy_brooq.overview import Holder, Retention, Throughput, TopicOverview
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.search import InvalidQuery, JobPage, JobQuery
from sqlalchemy_brooq.vocabulary import TERMINAL, Enqueued, JobState
from sqlalchemy_brooq.web.kept import FRESH, Kept, Unreachable

T = TypeVar("T")

audit: Final = logging.getLogger("sqlalchemy_brooq.web.audit")

BUDGET: Final = timedelta(seconds=1)
"""How long the database may take for a statement."""
MOST: Final = 10_000
"""Jobs that are counted, and that one request may change."""
STALE: Final = timedelta(seconds=10)
"""How long an answer about the whole table may serve others who ask the same; `FRESH` at least."""
BUCKET_PARTS: Final = 60
"""Of a chart, how many answers are asked for while one of its buckets fills."""
LISTED: Final = ("key", "error")
"""What a list tells of each job beside the plain facts."""


class Grown(BrooqError, RuntimeError):  # noqa: N818 - names the caller's situation
    """
    More jobs are meant by now than were expected; nothing was changed.
    """

    def __init__(self, expected: int, found: int) -> None:
        if found > MOST:
            text = f"more than {MOST:,} jobs are meant, which is too much for one request: narrow it down"
        else:
            text = f"{expected:,} jobs were expected, and {found:,} are meant by now: count them again"
        super().__init__(f"{text}; nothing was changed")
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """
    What was found, or why it is not known.
    """

    value: T | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """
    What became of the jobs that were to be changed.
    """

    counts: Counts
    replays: Mapping[UUID, Enqueued]
    """By the ids of the jobs that were replayed, now or before; empty after a cancel."""


class Reading:
    """
    Asks and acts.

    Args:
        transactions: Where.
        masks: What of payloads and results is hidden.
        ttls: How long jobs are kept, if that is known.
        budget: How long the database may take for a statement.
    """

    def __init__(
        self,
        transactions: Transactions,
        *,
        masks: Iterable[str] = (),
        ttls: Mapping[JobState, timedelta] | None = None,
        budget: timedelta = BUDGET,
    ) -> None:
        self._transactions = transactions
        self._masks = Masks(masks)
        self._ttls = ttls
        self._budget = budget
        self._kept = Kept()

    # -- the table as a whole

    def topics(self) -> Answer[list[TopicOverview]]:
        """
        Tell how each topic does; a count that takes too long is ``None`` in it. The answer may be a second old.
        """
        return self._kept.answer(
            "topics",
            FRESH,
            lambda: self._answer(lambda: overview.topics(self._transactions, budget=self._budget)),
        )

    def throughput(self, period: timedelta, buckets: int, topic: str | None = None) -> Answer[Throughput]:
        """
        Tell how many jobs ended when within *period*, in so many *buckets*. The answer may be a little old: as much
        as nobody sees in a chart, and ten seconds at most.
        """
        age = min(max(period / buckets / BUCKET_PARTS, FRESH), STALE)
        return self._kept.answer(
            (period, buckets, topic),
            age,
            lambda: self._answer(
                lambda: overview.throughput(self._transactions, period, buckets, topic, budget=self._budget)
            ),
        )

    def holders(self) -> Answer[list[Holder]]:
        """
        Tell who holds leases.
        """
        return self._answer(lambda: overview.holders(self._transactions, budget=self._budget))

    def retention(self) -> Answer[Retention]:
        """
        Tell what retention is about.
        """
        return self._answer(lambda: overview.retention(self._transactions, self._ttls, budget=self._budget))

    # -- jobs

    def in_flight(self, limit: int) -> Answer[list[JobView]]:
        """
        Return jobs in flight, what runs for longest first.
        """
        return self._answer(
            lambda: search.in_flight(self._transactions, limit=limit, private=LISTED, budget=self._budget)
        )

    def died(self, limit: int) -> Answer[list[JobView]]:
        """
        Return jobs that died within the last day, the latest first.
        """
        return self._answer(lambda: search.died(self._transactions, limit=limit, private=LISTED, budget=self._budget))

    def jobs(
        self, query: JobQuery, after: str | None = None, limit: int = 50, *, private: Collection[str] = LISTED
    ) -> Answer[JobPage]:
        """
        Return a page of jobs; its ``next`` is the *after* of the page that follows.

        Raises:
            InvalidQuery: *after* is no cursor of this question, or a field is asked for that is hidden.
        """
        self._check(query)

        def read() -> JobPage:
            found = search.page(
                self._transactions, query, after=after, limit=limit, private=private, budget=self._budget
            )
            return replace(found, jobs=[self._masked(job) for job in found.jobs])

        return self._answer(read)

    def job(self, job_id: UUID, *, pretty: bool = True) -> JobView:
        """
        Return all there is to know of a job, with payload and result spread over lines if *pretty*.

        Raises:
            JobNotFound: There is no such job.
            TooSlow: It took too long.
        """
        with _reached():
            return self._masked(search.one(self._transactions, job_id, pretty=pretty, budget=self._budget))

    # -- changes

    def count(self, query: JobQuery) -> Answer[dict[JobState, int]]:
        """
        Count the jobs that a change would be about, by state; `MOST` and one more in all stands for any number beyond.
        """
        self._check(query)
        return self._answer(lambda: search.count(self._transactions, query, limit=MOST, budget=self._budget))

    def cancel(self, which: JobQuery | Sequence[UUID], *, who: str, expected: int | None = None) -> Changes:
        """
        Call jobs off: those with these ids, or what a question means that says no states which are over.

        Args:
            which: Ids, or a question.
            who: Who does it, for the log.
            expected: How many jobs a question meant when they were counted.

        Raises:
            Grown: It means more by now.
            InvalidQuery: It is about jobs that are over, or about too many.
            TooSlow: To find them took too long.
        """
        states = CANCELABLE
        if isinstance(which, JobQuery):
            which = self.cancelable(which)
            states = which.states
        counts = Counts()
        with _reached(), self._told("canceled", which, who, counts):
            ids = self._ids(which, expected)
            cancel_jobs(self._transactions, ids, counts=counts, states=states)
        return Changes(counts, {})

    def replay(self, which: JobQuery | Sequence[UUID], *, who: str, expected: int | None = None) -> Changes:
        """
        Enqueue jobs that are over once more; otherwise as `cancel`. A question has to say in which states these are.
        """
        if isinstance(which, JobQuery):
            which = self.replayable(which)
        counts, replays = Counts(), dict[UUID, Enqueued]()
        with _reached(), self._told("replayed", which, who, counts):
            replay_jobs(self._transactions, self._ids(which, expected), counts=counts, replays=replays)
        return Changes(counts, replays)

    def cancelable(self, query: JobQuery) -> JobQuery:
        """
        Return *query* for jobs that can be canceled; `InvalidQuery` where it is about others.
        """
        states = query.states or CANCELABLE
        if not states <= CANCELABLE or query.asks_for_ends:
            raise InvalidQuery("a job that is over can't be canceled: it is pending, failed or processing that can")
        return replace(query, states=states)

    def replayable(self, query: JobQuery) -> JobQuery:
        """
        Return *query* if it says of which jobs that are over; `InvalidQuery` where it doesn't.
        """
        if not query.states or not query.states <= TERMINAL:
            raise InvalidQuery("say which jobs that are over: the states dead, canceled or done, and no others")
        return query

    def _ids(self, which: JobQuery | Sequence[UUID], expected: int | None) -> Ids:
        if not isinstance(which, JobQuery):
            if len(which) > MOST:
                raise InvalidQuery(f"{len(which):,} ids are too many for one request: at most {MOST:,} are taken")
            return Ids(sorted(set(which)))
        self._check(which)
        limit = MOST if expected is None else min(expected, MOST)
        found = search.chosen(self._transactions, which, limit=MOST, budget=self._budget)
        if len(found) > limit:
            raise Grown(limit, len(found))
        return Ids(found)

    @contextlib.contextmanager
    def _told(self, verb: str, which: JobQuery | Sequence[UUID], who: str, counts: Counts) -> Iterator[None]:
        """
        Write to the log what was done, also if it is broken off.
        """
        try:
            yield
        finally:
            self._kept.clear()
            what = _described(which)
            extra = {"event": verb, "who": who, "what": what, "count": counts.changed}
            audit.info("%s %s %d: %s", _in_one_line(who), verb, counts.changed, what, extra=extra)

    def _check(self, query: JobQuery) -> None:
        for path, value in query.payload:
            if self._masks.cover(path.split(".")):
                raise InvalidQuery(f"{path!r} is hidden here, and can't be searched for")
            if self._masks and value.startswith(("{", "[")):  # a guess at what it has within
                raise InvalidQuery("objects and arrays can't be searched for where fields are hidden: name one value")

    def _masked(self, job: JobView) -> JobView:
        if not self._masks:
            return job
        private = {
            name: self._masks.applied(value) if isinstance(value, RawJson) else value
            for name, value in job.private.items()
        }
        return replace(job, private=private)

    def _answer(self, ask: Callable[[], T]) -> Answer[T]:
        with _reached():
            try:
                return Answer(ask())
            except TooSlow as error:
                return Answer(None, str(error))


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    """
    Turn what a database raises that can't be asked into `Unreachable`.
    """
    try:
        yield
    except DataError as error:
        raise InvalidQuery(f"the database refuses a value: {error_text(error)}") from error
    except SQLAlchemyError as error:
        raise _unreachable(error) from error


def _unreachable(error: SQLAlchemyError) -> Unreachable:
    """
    Return what to say of *error*: what the server said, and nothing of libpq's, which names hosts and paths.
    """
    said = getattr(getattr(getattr(error, "orig", None), "diag", None), "message_primary", None)
    text = f"the database can't be asked: {said}" if said else "the database can't be reached"
    return Unreachable(text, error_text(error))


def _described(which: JobQuery | Sequence[UUID]) -> str:
    """
    Return what is changed in words: ids, or what a question says but for the values that it looks for in payloads.
    """
    if not isinstance(which, JobQuery):
        return ", ".join(map(str, which))
    said: dict[str, Any] = {
        "topics": ",".join(map(_in_one_line, which.topics)),
        "states": ",".join(state for state in JobState if state in which.states),
        "key": which.key and _in_one_line(which.key),
        "created_since": which.created_since,
        "created_until": which.created_until,
        "ended_since": which.ended_since,
        "ended_until": which.ended_until,
        "payload": ",".join(_in_one_line(path) for path, _ in which.payload),
    }
    return " ".join(f"{name}={value}" for name, value in said.items() if value) or "all"


def _in_one_line(text: str) -> str:
    """
    Return *text* so that no line of the log begins within it.
    """
    return text if text.isprintable() else repr(text)
