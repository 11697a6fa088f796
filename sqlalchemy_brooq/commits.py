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
_NEVER: Final = (float("-inf"), 0.0)


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
        cancels = (f"{_CANCEL}{holder}" for holder in self.holders)
        wakeups.update(cancel for cancel in cancels if len(cancel.encode()) <= _MAX_NOTIFICATION)
        return wakeups


class _Subscribers:
    """
    Who in this process hears of commits.
    """

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
        sent = self._sent.get(dialect)
        if sent is None:
            return set(wakeups)
        due = set()
        for wakeup in wakeups:
            moment, took = sent.get(wakeup, _NEVER)
            if now + took >= moment + QUIET:
                due.add(wakeup)
        return due

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

    __slots__ = ("_older", "_savepoints", "_watched", "tallies")

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self._watched: set[str] = set()
        self._savepoints: list[int] = []
        """How much was done when each of the open savepoints began."""
        self._older = 0
        """How much was done when the savepoints began that were open before we listened for them."""

    def watch(self, connection: Connection) -> None:
        """
        Follow *connection* through its transactions, of the kinds that it was seen with: each listener takes a while.

        On the connection, which is one thread's. On an engine that others are using, a listener can't be added safely.
        """
        if not self._watched:
            self._listen(connection, "commit", self._on_commit)
            self._listen(connection, "rollback", self._on_rollback)
            if not event.contains(connection.dialect, "handle_error", _recent.forget):
                event.listen(connection.dialect, "handle_error", _recent.forget)
        if "savepoint" not in self._watched and connection.in_nested_transaction():
            # Nothing was done in those that are open: then we would be listening already.
            self._older = len(self.tallies)
            self._listen(connection, "savepoint", self._on_savepoint)
            self._listen(connection, "release_savepoint", self._on_release_savepoint)
            self._listen(connection, "rollback_savepoint", self._on_rollback_savepoint)
        if "commit_twophase" not in self._watched and isinstance(connection.get_transaction(), TwoPhaseTransaction):
            self._listen(connection, "commit_twophase", self._on_commit)
            self._listen(connection, "rollback_twophase", self._on_rollback)

    def _listen(self, connection: Connection, name: str, listener: Callable[..., object]) -> None:
        self._watched.add(name)
        event.listen(connection, name, listener)

    def _on_savepoint(self, *_: Any) -> None:
        self._savepoints.append(len(self.tallies))

    def _on_release_savepoint(self, *_: Any) -> None:
        self._left()

    def _on_rollback_savepoint(self, *_: Any) -> None:
        del self.tallies[self._left() :]

    def _left(self) -> int:
        """
        Leave the innermost savepoint, and return how much was done when it began.
        """
        return self._savepoints.pop() if self._savepoints else self._older

    def _on_rollback(self, *_: Any) -> None:
        self.tallies.clear()
        self._savepoints.clear()
        self._older = 0

    def _on_commit(self, *_: Any) -> None:
        told = Tally()
        for tally in self.tallies:
            told.merge(tally)
        self._on_rollback()
        publish(told)


_ledgers: Final[WeakKeyDictionary[Connection, _Ledger]] = WeakKeyDictionary()
