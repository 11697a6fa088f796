"""
Retention: deletes old terminal rows, oldest first, a batch at a time.

A row that a consumer's foreign key holds is left alone, said once, and stops nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from sqlalchemy.exc import DBAPIError, IntegrityError

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.statements import retention
from sqlalchemy_brooq.statements.waiting import limit_lock_waits
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState
from sqlalchemy_brooq.worker.connection import Transactions
from sqlalchemy_brooq.worker.journal import log

BATCHES: Final = 100
"""The most batches in one tick; a larger backlog goes on at the next."""
LOCK_NOT_AVAILABLE: Final = "55P03"
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


@dataclass(frozen=True, slots=True)
class Sorted:
    """
    What became of a batch whose rows were deleted one by one.
    """

    topics: Sequence[str]
    """Of the rows that were deleted."""
    held: int
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
            raise Held(error_text(error)) from error

    def purge_one_by_one(self, after: Cursor) -> Sorted:
        """
        Delete what can be deleted of one batch of due rows.
        """
        topics: list[str] = []
        held = waits = 0
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
                    held += 1
                    waits += not isinstance(error, IntegrityError)
                if waits >= WAITS:
                    break
        return Sorted(topics, held, cursor)


def _is_held(error: DBAPIError) -> bool:
    return isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE


class Retention:
    """
    One round deletes what is due, in at most `BATCHES` batches.

    Args:
        ports: One for each time to live.
        deleted: Is told of deleted rows: topic and count.
        period: Seconds between rounds.
    """

    def __init__(self, ports: Sequence[RetentionPort], deleted: Callable[[str, int], None], period: float) -> None:
        self._ports = ports
        self._deleted = deleted
        self._period = period
        self._told: set[str] = set()

    def round(self) -> float:
        """
        Delete what is due, and return the seconds until the next round.
        """
        counts: Counter[str] = Counter()
        for port in self._ports:
            self._empty(port, counts)
        if counts:
            by_topic = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
            log.info("retention: deleted %d: %s", counts.total(), by_topic)
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
                self._tell(str(reason), found.held)
            self._count(topics, counts)
            if following is None:
                return
            after = following
        log.warning("retention: more than %d batches are due; the rest goes on next time", BATCHES)

    def _tell(self, reason: str, held: int) -> None:
        """
        Say once for each reason that rows stay.
        """
        if held and reason not in self._told:
            self._told.add(reason)
            log.warning("retention: rows stay that are held by others, %d in this batch (%s)", held, reason)

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
