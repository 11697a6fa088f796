"""
What a session owes to its jobs until its transaction ends: to write, to announce, to count, to take back.

One `Book` a session, made when the session sees its first job. Decides nothing about rows and objects; the listeners
of ``unit_of_work`` open it and close it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from sqlalchemy_brooq import adoption, commits
from sqlalchemy_brooq.commits import Tally
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.private import is_flushing

_KEY: Final = "sqlalchemy_brooq"
"""Where a session's `info` has its book."""


class Stage(Enum):
    """
    How far the flush that is running has come.
    """

    BEGUN = "begun"
    """The waiting jobs are still to be written."""
    WRITTEN = "written"
    """What is added now was missed."""
    FLUSHED = "flushed"
    """What is added now waits for the next flush."""


class Book:
    """
    A session's jobs that are not written, not announced, or not committed.

    Args:
        announcing: Whether jobs are announced as they are written. That is so once the commit has begun: until then
            all may be rolled back, or more may come.
    """

    def __init__(self, *, announcing: bool) -> None:
        self.announcing = announcing
        self.committing = False
        """Whether the session's commit has begun."""
        self.stage = Stage.WRITTEN
        """For a book that is made in a flush: our listener is not among those that were called."""
        self.watching = False
        """Whether the session's flushes are listened to."""
        self.added: list[Job] = []
        """To be written ahead of the next flush."""
        self.left: list[Job] = []
        """Added while a flush was running, which inserts them itself."""
        self.gave_way: list[tuple[Job, Job]] = []
        """Added while a flush was running, and the object that the session has for the row already."""
        self._announced: set[str] = set()
        self._tallies: dict[SessionTransaction, Tally] = {}
        self._saved: WeakKeyDictionary[Job, tuple[SessionTransaction, dict[str, Any]]] = WeakKeyDictionary()
        self._shown: WeakKeyDictionary[Job, SessionTransaction] = WeakKeyDictionary()

    def waiting(self, session: Session) -> list[Job]:
        """
        Return the jobs that wait for a flush, in the order in which they were added.
        """
        return [job for job in self.added if is_pending(session, job)]

    def save(self, session: Session, job: Job) -> None:
        """
        Keep *job* as it is, in case that what follows is rolled back.
        """
        self._saved.setdefault(job, (_innermost(session), adoption.snapshot(job)))

    def showed(self, session: Session, job: Job) -> None:
        """
        Keep in mind that *job* shows what the transaction has done to its row.
        """
        self._shown.setdefault(job, _innermost(session))

    def note(self, session: Session, tally: Tally) -> None:
        """
        Count *tally* in the session's transaction, and announce it if the commit has begun.
        """
        transaction = _innermost(session)
        if (known := self._tallies.get(transaction)) is None:
            self._tallies[transaction] = tally
        else:
            known.merge(tally)
        self.announce(session)

    def announce(self, session: Session) -> None:
        """
        Wake the workers for what has not been announced yet, if the commit has begun.
        """
        if not (self.announcing and self._tallies) or session.in_nested_transaction():
            return
        wakeups = set[str]().union(*(tally.wakeups() for tally in self._tallies.values())) - self._announced
        if wakeups:
            self._announced |= wakeups
            # Not session.connection(): a session that is committed inside of `with session.begin_nested()` refuses it.
            transaction = _innermost(session)
            announcement = commits.wake(transaction.connection(adoption.MAPPER), wakeups)
            self._tallies.setdefault(transaction, Tally()).announced.append(announcement)

    def take_back(self, ended: SessionTransaction) -> None:
        """
        Undo what was done in *ended*, and in the savepoints that were released into it.
        """
        self.left.clear()
        for job, (transaction, saved) in list(self._saved.items()):
            if _within(transaction, ended):
                del self._saved[job]
                adoption.restore(job, saved)
        for job, transaction in list(self._shown.items()):
            if _within(transaction, ended):
                del self._shown[job]
                adoption.forget_state(job)
        for transaction in [one for one in self._tallies if _within(one, ended)]:
            del self._tallies[transaction]

    def is_open(self) -> bool:
        """
        Whether there is anything that `take_back` or `close` would do.
        """
        return bool(
            self.announcing or self.added or self.left or self._announced or self._tallies or self._saved or self._shown
        )

    def close(self) -> Tally:
        """
        Begin anew, and return what the transaction did.
        """
        done = Tally()
        for tally in self._tallies.values():
            done.merge(tally)
        for kept in (self.left, self.gave_way, self._announced, self._tallies, self._saved, self._shown):
            if kept:  # clearing an empty one takes longer than asking
                kept.clear()
        self.announcing = self.committing = False
        return done


def existing_book(session: Session) -> Book | None:
    """
    Return the book of *session*, if it ever saw a job.
    """
    book: Book | None = session.info.get(_KEY)
    return book


def book_of(session: Session) -> Book:
    """
    Return the book of *session*, made if there is none.
    """
    book = existing_book(session)
    if book is None:
        # Whether a flush is a commit's, nothing tells: what begins in one is announced at once.
        book = session.info[_KEY] = Book(announcing=is_flushing(session))
    return book


def connection_of(session: Session) -> Connection:
    """
    Return the connection to the database of the jobs, in the session's transaction.

    Statements go over it instead of ``session.execute()``, whose events, autoflush and loader criteria are for
    the consumer's own queries.
    """
    return session.connection(bind_arguments={"mapper": adoption.MAPPER})


def is_pending(session: Session, job: Job) -> bool:
    """
    Whether *job* was added to *session* and not written.
    """
    return instance_state(job).key is None and job in session


def _innermost(session: Session) -> SessionTransaction:
    """
    Return the innermost transaction that can be rolled back alone; a session that has a job in it has one.
    """
    return cast("SessionTransaction", session.get_nested_transaction() or session.get_transaction())


def _within(inner: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is not None
