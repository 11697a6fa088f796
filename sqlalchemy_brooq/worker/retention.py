"""
Retention: deletes old terminal rows, oldest first, a batch at a time.

A row that a consumer's foreign key holds is left alone, said once, and stops nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.statements import retention
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState
from sqlalchemy_brooq.worker.connection import Transactions
from sqlalchemy_brooq.worker.journal import log

BATCHES: Final = 100
"""The most batches in one tick; a larger backlog goes on at the next."""
REMEMBERED: Final = 10_000
"""The most held rows that are kept in mind; beyond, they are found again and again."""


class Referenced(Exception):  # noqa: N818 - names what was found
    """
    A foreign key of the consumer's holds one of the rows; none was deleted.
    """


class RetentionPort(Protocol):
    """
    What retention asks for.
    """

    def purge(self, held: Collection[UUID]) -> Sequence[str]:
        """
        Delete one batch of due rows, but for *held* ones, and return their topics.

        Raises:
            Referenced: A foreign key holds one of them.
        """

    def candidates(self, held: Collection[UUID]) -> Sequence[UUID]:
        """
        Return the ids of one batch of due rows.
        """

    def purge_these(self, ids: Sequence[UUID]) -> Sequence[str]:
        """
        Delete those of the rows *ids* that are due, and return their topics.

        Raises:
            Referenced: A foreign key holds one of them.
        """


class RetentionStore:
    """
    Retention's verbs for states that share a time to live.
    """

    def __init__(self, transactions: Transactions, states: Collection[JobState], ttl: timedelta, batch: int) -> None:
        self._transactions = transactions
        self._ttl = ttl
        self._batch = batch
        self._purge = retention.purge(states)
        self._candidates = retention.candidates(states)
        self._purge_these = retention.purge_these(states)

    def purge(self, held: Collection[UUID]) -> Sequence[str]:
        """
        Delete one batch of due rows.
        """
        return self._deleted(self._purge, {"ttl": self._ttl, "batch": self._batch, "held": list(held)})

    def candidates(self, held: Collection[UUID]) -> Sequence[UUID]:
        """
        Return the ids of one batch of due rows.
        """
        parameters = {"ttl": self._ttl, "batch": self._batch, "held": list(held)}
        with self._transactions() as connection:
            return connection.execute(self._candidates, parameters).scalars().all()

    def purge_these(self, ids: Sequence[UUID]) -> Sequence[str]:
        """
        Delete those of the rows *ids* that are due.
        """
        return self._deleted(self._purge_these, {"ttl": self._ttl, "ids": list(ids)})

    def _deleted(self, statement: object, parameters: Mapping[str, object]) -> Sequence[str]:
        try:
            with self._transactions() as connection:
                return connection.execute(statement, parameters).scalars().all()  # type: ignore[call-overload, no-any-return]
        except IntegrityError as error:
            raise Referenced(error_text(error)) from error


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
        self._held: set[UUID] = set()

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
        for _ in range(BATCHES):
            topics = self._batch(port)
            if not topics:
                return
            found = Counter(topics)
            counts.update(found)
            for topic, count in found.items():
                self._deleted(topic, count)
        log.warning("retention: more than %d batches are due; the rest goes on next time", BATCHES)

    def _batch(self, port: RetentionPort) -> list[str]:
        """
        Delete one batch; rows that a foreign key holds are set aside until one is found that isn't.
        """
        try:
            return list(port.purge(self._held))
        except Referenced as reason:
            text = str(reason)
        topics: list[str] = []
        while not topics and (ids := port.candidates(self._held)):
            held = self._sort_out(port, ids, topics)
            log.warning("retention: %d rows are held by a foreign key and stay (%s)", len(held), text)
            if len(self._held) + len(held) > REMEMBERED:
                self._held.clear()
            self._held.update(held)
        return topics

    def _sort_out(self, port: RetentionPort, ids: Sequence[UUID], topics: list[str]) -> list[UUID]:
        """
        Delete what of *ids* can be deleted, by halves, and return the rows that are held.
        """
        try:
            topics += port.purge_these(ids)
        except Referenced:
            if len(ids) == 1:
                return list(ids)
            middle = len(ids) // 2
            return self._sort_out(port, ids[:middle], topics) + self._sort_out(port, ids[middle:], topics)
        return []


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
