"""
Retention: deletes old terminal rows, oldest first, a batch at a time.

A row that a consumer's foreign key holds is left alone, said once, and stops nothing else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy.exc import DBAPIError, IntegrityError

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from sqlalchemy_brooq.statements import retention
from sqlalchemy_brooq.statements.waiting import limit_lock_waits
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState, Notice
from sqlalchemy_brooq.worker.connection import Transactions
from sqlalchemy_brooq.worker.log import log

BATCHES: Final = 100
"""The most batches in one tick; a larger backlog goes on at the next."""
PROGRESS: Final = 30.0
"""Seconds between lines about a round that takes long."""
LOCK_WAIT: Final = "100ms"
"""How long the foreign keys of a deleted row may wait for a consumer's transaction."""
WAITS: Final = 5
"""Such waits in a batch after which the rest of it is left for the next round."""

Cursor = Mapping[str, object]
"""The row after which a batch begins, as the statements take it."""


class Held(Exception):  # noqa: N818 - names what was found
    """
    A foreign key of the consumer's holds one of the rows, or somebody its lock; none was deleted.
    """

    def __init__(self, reason: str, constraint: str | None = None) -> None:
        super().__init__(reason)
        self.constraint = constraint


@dataclass(frozen=True, slots=True)
class Sorted:
    """
    What became of a batch whose rows were deleted one by one.
    """

    topics: Sequence[str]
    """Of the rows that were deleted."""
    held: Sequence[UUID]
    """Rows that stay."""
    cursor: Cursor | None
    """Where the next batch begins; ``None`` where there was no row any more."""


class RetentionPort(Protocol):
    """
    What retention asks for.
    """

    def purge(self, after: Cursor) -> Sequence[str]:
        """
        Delete one batch of due rows, and return their topics.

        Raises:
            Held: One of them can't be deleted.
        """

    def purge_one_by_one(self, after: Cursor) -> Sorted:
        """
        Delete what can be deleted of one batch of due rows.
        """


class RetentionStore:
    """
    Retention's verbs for states that share a time to live.
    """

    def __init__(self, transactions: Transactions, states: Collection[JobState], ttl: timedelta, batch: int) -> None:
        self._transactions = transactions
        self._due = {"ttl": ttl, "batch": batch}
        self._purge = retention.purge(states)
        self._candidates = retention.candidates(states)
        self._purge_one = retention.purge_one(states)

    def purge(self, after: Cursor) -> Sequence[str]:
        """
        Delete one batch of due rows, and return their topics.
        """
        try:
            with self._transactions() as connection:
                connection.execute(limit_lock_waits(), {"limit": LOCK_WAIT})
                return connection.execute(self._purge, {**self._due, **after}).scalars().all()
        except DBAPIError as error:
            if not _is_held(error):
                raise
            raise Held(error_text(error), _constraint(error)) from error

    def purge_one_by_one(self, after: Cursor) -> Sorted:
        """
        Delete what can be deleted of one batch of due rows.
        """
        topics: list[str] = []
        held: list[UUID] = []
        waits = 0
        cursor: Cursor | None = None
        with self._transactions() as connection:
            connection.execute(limit_lock_waits(), {"limit": LOCK_WAIT})
            for job_id, updated_at in connection.execute(self._candidates, {**self._due, **after}).all():
                cursor = {"after_at": updated_at, "after_id": job_id}
                try:
                    with connection.begin_nested():
                        topics += connection.execute(self._purge_one, {**self._due, "id": job_id}).scalars()
                except DBAPIError as error:
                    if not _is_held(error):
                        raise
                    held.append(job_id)
                    waits += not isinstance(error, IntegrityError)
                if waits >= WAITS:
                    break
        return Sorted(topics, held, cursor)


def _constraint(error: DBAPIError) -> str | None:
    return getattr(getattr(error.orig, "diag", None), "constraint_name", None)


def _is_held(error: DBAPIError) -> bool:
    return isinstance(error, IntegrityError) or sqlstate(error) == LOCK_NOT_AVAILABLE


class Retention:
    """
    One round deletes what is due, in at most `BATCHES` batches.

    Args:
        ports: One for each time to live.
        deleted: Is told of deleted rows: topic and count.
        period: Seconds between rounds.
        clock: Seconds that only rise.
    """

    def __init__(
        self,
        ports: Sequence[RetentionPort],
        deleted: Callable[[str, int], None],
        period: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = ports
        self._deleted = deleted
        self._period = period
        self._clock = clock
        self._said_at = 0.0
        self._told: set[str] = set()

    def round(self) -> float:
        """
        Delete what is due, and return the seconds until the next round.
        """
        counts: Counter[str] = Counter()
        self._said_at = self._clock()
        for port in self._ports:
            self._empty(port, counts)
        if counts:
            by_topic = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
            extra = {"event": Notice.JOBS_DELETED.value, "count": counts.total()}
            log.info("retention: deleted %d: %s", counts.total(), by_topic, extra=extra)
        return self._period

    def _empty(self, port: RetentionPort, counts: Counter[str]) -> None:
        after: Cursor = retention.FIRST
        for _ in range(BATCHES):
            try:
                topics = port.purge(after)
                following: Cursor | None = after if topics else None
            except Held as reason:
                found = port.purge_one_by_one(after)
                topics, following = found.topics, found.cursor
                self._tell(reason, found.held)
            self._count(topics, counts)
            self._tell_progress(counts.total())
            if following is None:
                return
            after = following
        text = "retention: more than %d batches are due; the rest goes on in %g s: QUEUE_RETENTION_BATCH makes it more"
        log.warning(text, BATCHES, self._period)

    def _tell(self, reason: Held, held: Sequence[UUID]) -> None:
        """
        Say once for each reason that rows stay.
        """
        name = reason.constraint or str(reason)
        if held and name not in self._told:
            self._told.add(name)
            extra = {"event": Notice.ROWS_HELD.value, "constraint": reason.constraint}
            text = "retention: rows stay that are held by others, such as %s, %d in this batch (%s); this is said once"
            log.warning(text, held[0], len(held), reason, extra=extra)

    def _tell_progress(self, total: int) -> None:
        """
        Say now and then how far a long round has come.
        """
        if self._clock() - self._said_at >= PROGRESS:
            self._said_at = self._clock()
            extra = {"event": Notice.JOBS_DELETED.value, "count": total}
            log.info("retention: deleted %d so far, and goes on", total, extra=extra)

    def _count(self, topics: Sequence[str], counts: Counter[str]) -> None:
        found = Counter(topics)
        counts.update(found)
        for topic, count in found.items():
            self._deleted(topic, count)


def lifetimes(config: Config) -> dict[timedelta, frozenset[JobState]]:
    """
    Return which states are deleted after which time; a state with a zero one is kept for good.
    """
    found: dict[timedelta, frozenset[JobState]] = {}
    for state in TERMINAL:
        ttl = getattr(config, f"retention_ttl_{state}")
        if ttl:
            found[ttl] = found.get(ttl, frozenset()) | {state}
    return found
