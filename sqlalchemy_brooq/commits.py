"""
What is told of a commit that enqueued or canceled: to other processes by ``NOTIFY``, to this one by calling back.

Both are hints and may be missed; the rows are the truth. Also keeps, for a bare connection, what its open
transaction would tell, and in mind what was sent a moment ago. Knows no session and no ``Job`` object.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, ExceptionContext, TwoPhaseTransaction, event

from sqlalchemy_brooq.statements.producing import notify

_logger = logging.getLogger(__name__)
QUIET: Final = 0.020
"""Seconds after a wake-up in which none follows it: for longer than that, a woken worker looks again by itself."""
_MAX_NOTIFICATION: Final = 7_999
"""Bytes that PostgreSQL takes in one notification."""
_MANY: Final = 1_000
"""Topics that are remembered, before those are forgotten of which nothing was heard lately."""
_CANCEL: Final = "cancel:"
"""No topic begins like that."""
_NOTHING: Final[Mapping[tuple[str, bool], int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EnqueuedNote:
    """
    What one transaction enqueued and canceled, told once it committed.
    """

    counts: Mapping[tuple[str, bool], int]
    """(topic, created) -> how many jobs were handed in."""
    holders: frozenset[str]
    """The workers that were running a job that the transaction canceled."""

    @property
    def topics(self) -> frozenset[str]:
        """
        The topics that got a new job.
        """
        return frozenset(topic for topic, created in self.counts if created)


class Announcement(NamedTuple):
    """
    The topics that a transaction has sent wake-ups for.
    """

    dialect: Dialect
    """Of the engine; there is one for each, so it stands for the database."""
    topics: frozenset[str]
    decided: float
    """When, by the monotonic clock."""


class Tally:
    """
    What a part of a transaction did so far.
    """

    __slots__ = ("announced", "counts", "holders")

    def __init__(self, counts: Mapping[tuple[str, bool], int] = _NOTHING, holders: Iterable[str] = ()) -> None:
        self.counts = defaultdict(int, counts)
        self.holders = set(holders)
        self.announced: list[Announcement] = []

    def __bool__(self) -> bool:
        return bool(self.counts or self.holders)

    def merge(self, other: Tally) -> None:
        """
        Add what *other* counted.
        """
        for told, count in other.counts.items():
            self.counts[told] += count
        self.holders |= other.holders
        self.announced += other.announced

    def wakeups(self) -> set[str]:
        """
        Return the notifications that are due for it.
        """
        wakeups = {topic for topic, created in self.counts if created}
        wakeups.update(f"{_CANCEL}{holder}" for holder in self.holders)
        return {wakeup for wakeup in wakeups if len(wakeup.encode()) <= _MAX_NOTIFICATION}


class _Subscribers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[EnqueuedNote], object], ...] = ()

    def subscribe(self, callback: Callable[[EnqueuedNote], object]) -> Callable[[], None]:
        """
        Call *callback* after each commit of this process that enqueued or canceled; return what ends that.

        It runs in the committing thread, so it must be quick; what it raises is logged. After a commit on a bare
        ``Connection`` it is called a moment before the rows can be seen.
        """
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

        def unsubscribe() -> None:
            with self._lock:
                self._callbacks = tuple(other for other in self._callbacks if other is not callback)

        return unsubscribe

    def publish(self, tally: Tally) -> None:
        """
        Tell the subscribers what a committed transaction did.
        """
        if not tally:
            return
        for announcement in tally.announced:
            _recent.note(announcement)
        note = EnqueuedNote(dict(tally.counts), frozenset(tally.holders))
        for callback in self._callbacks:
            try:
                callback(note)
            except Exception:
                _logger.exception("a subscriber failed on %r; the commit stands", note)


class _Recent:
    """
    Which wake-ups this process has sent a moment ago, and committed.

    Without a lock, which a fork could leave locked: each step is one operation of a dictionary.
    """

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[Dialect, dict[str, tuple[float, float]]] = WeakKeyDictionary()

    def due(self, dialect: Dialect, wakeups: Iterable[str], now: float) -> set[str]:
        """
        Return those of *wakeups* that the workers need: a cancel, and what is committed when none looks any more.

        From the decision to the commit it is supposed to take as long as it took the last time.
        """
        sent = self._sent.get(dialect, {})
        never = (float("-inf"), 0.0)
        return {
            wakeup
            for wakeup, (moment, took) in ((wakeup, sent.get(wakeup, never)) for wakeup in wakeups)
            if now + took >= moment + QUIET
        }

    def note(self, announcement: Announcement) -> None:
        """
        Take note that the transaction of *announcement* commits.
        """
        now = time.monotonic()
        sent = self._sent.setdefault(announcement.dialect, {})
        if len(sent) > _MANY:
            sent = self._sent[announcement.dialect] = {
                topic: told for topic, told in list(sent.items()) if now < told[0] + QUIET
            }
        for topic in announcement.topics:
            sent[topic] = now, now - announcement.decided

    def forget(self, context: ExceptionContext) -> None:
        """
        Take nothing for granted after an error outside of a statement: it may have been the commit that failed.
        """
        if context.statement is None:
            self._sent.pop(context.dialect, None)


_subscribers: Final = _Subscribers()
subscribe: Final = _subscribers.subscribe
publish: Final = _subscribers.publish
_recent: Final = _Recent()


def is_quiet(connection: Connection, topic: str) -> bool:
    """
    Whether a job of *topic* that is committed at once needs no wake-up, because there was one a moment ago.
    """
    return not _recent.due(connection.dialect, (topic,), time.monotonic())


def wake(connection: Connection, wakeups: set[str]) -> Announcement:
    """
    Wake the workers of other processes when the transaction of *connection* commits.

    Not those that a wake-up of a moment ago has woken. And not in a two-phase transaction: PostgreSQL refuses to
    prepare one that has notified.
    """
    now = time.monotonic()
    due: set[str] = set()
    if not isinstance(connection.get_transaction(), TwoPhaseTransaction):
        due = _recent.due(connection.dialect, wakeups, now)
    if due:
        connection.execute(notify(), {"wakeups": sorted(due)})
    topics = frozenset(wakeup for wakeup in due if not wakeup.startswith(_CANCEL))
    return Announcement(connection.dialect, topics, now)


def keep(connection: Connection, tally: Tally) -> None:
    """
    Publish *tally* when the transaction of *connection* commits, unless it is rolled back, also to a savepoint.
    """
    ledger = _ledgers.get(connection)
    if ledger is None:
        ledger = _ledgers[connection] = _Ledger()
        ledger.watch(connection)
    ledger.tallies.append(tally)


class _Ledger:
    """
    What the open transaction of a connection would tell, in the order in which it was done.
    """

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self._savepoints: list[int] = []

    def watch(self, connection: Connection) -> None:
        """
        Follow *connection* through its transactions.
        """
        event.listen(connection, "savepoint", self._on_savepoint)
        event.listen(connection, "release_savepoint", self._on_release_savepoint)
        event.listen(connection, "rollback_savepoint", self._on_rollback_savepoint)
        for name in ("rollback", "rollback_twophase"):
            event.listen(connection, name, self._on_rollback)
        for name in ("commit", "commit_twophase"):
            event.listen(connection, name, self._on_commit)
        if not event.contains(connection.dialect, "handle_error", _recent.forget):
            event.listen(connection.dialect, "handle_error", _recent.forget)

    def _on_savepoint(self, *_: Any) -> None:
        self._savepoints.append(len(self.tallies))

    def _on_release_savepoint(self, *_: Any) -> int:
        # One that we don't know is older than anything we were told.
        return self._savepoints.pop() if self._savepoints else 0

    def _on_rollback_savepoint(self, *_: Any) -> None:
        del self.tallies[self._on_release_savepoint() :]

    def _on_rollback(self, *_: Any) -> None:
        self.tallies.clear()
        self._savepoints.clear()

    def _on_commit(self, *_: Any) -> None:
        told = Tally()
        for tally in self.tallies:
            told.merge(tally)
        self._on_rollback()
        publish(told)


_ledgers: Final[WeakKeyDictionary[Connection, _Ledger]] = WeakKeyDictionary()
