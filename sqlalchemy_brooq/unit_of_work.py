"""
``session.add(Job(...))``: new jobs are written ahead of the flush that would insert them.

A flush could not: it takes a key that exists for an error, which aborts the consumer's transaction. Ahead of it they
go in with ``ON CONFLICT DO NOTHING``, many in a statement, and their objects enter the session as persistent ones.

The listeners are on `sqlalchemy.orm.Session` itself, because there is nothing that a consumer would have to call
first: ``session.add(Job(...))`` works in any session of any sessionmaker, also in one made before this import. A
session that never saw a job pays an ``isinstance`` for each object, and a look into its ``info`` a flush and a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.attributes import flag_dirty, instance_state

from sqlalchemy_brooq import adoption, commits, intake, payload, tracing
from sqlalchemy_brooq.book import Book, Stage, book_of, connection_of, existing_book, is_pending
from sqlalchemy_brooq.commits import Tally
from sqlalchemy_brooq.errors import InvalidJob, PayloadError
from sqlalchemy_brooq.intake import Answer, Draft
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.payload import Serializer
from sqlalchemy_brooq.private import is_flushing, json_serializer
from sqlalchemy_brooq.vocabulary import Enqueued


def enqueue(session: Session, job: Job) -> Enqueued:
    """
    Write *job* now, and leave it in *session* as a persistent object.

    With autoflush, the jobs that were added before it go first. While a flush is running, a job that can't meet
    another is left to the flush, and is pending until then.
    """
    state = instance_state(job)
    fresh = job not in session
    if state.session_id is not None and fresh:
        session.add(job)  # raises: the object is another session's
    if state.identity is not None:
        session.add(job)
        return Enqueued(state.identity[0], created=False)
    if is_flushing(session) and _can_be_left(job):
        _drafts(session, [job])
        session.add(job)
        return Enqueued(job.id, created=fresh)
    if fresh and (tracer := tracing.active) is not None:
        tracer.stamp(job)
    before = book_of(session).waiting(session) if session.autoflush else []
    _write(session, [*before, job])
    return Enqueued(job.id, created=bool(job.created))


def connect(session: Session) -> Connection:
    """
    Return the connection to the database of the jobs, in the session's transaction.

    With autoflush, the jobs that were added before are written first, as before any query of a session.
    """
    book = existing_book(session)
    if book is not None and session.autoflush and not is_flushing(session):
        _write(session, book.waiting(session))
    return connection_of(session)


def write_pending(session: Session, jobs: Iterable[Job]) -> None:
    """
    Write those of *jobs* that were added to *session* and not written yet.
    """
    _write(session, [job for job in jobs if is_pending(session, job)])


def note(session: Session, tally: Tally) -> None:
    """
    Tell of *tally* when the session's transaction commits, unless that part of it is rolled back.
    """
    book_of(session).note(session, tally)


def show(session: Session, job_id: UUID, values: dict[str, Any]) -> None:
    """
    Let the objects that *session* holds for a row show *values*.
    """
    for job in adoption.all_held(session, job_id):
        adoption.show(job, values)
        book_of(session).showed(session, job)


def serializer_of(session: Session) -> Serializer | None:
    """
    Return the ``json_serializer`` of the engine that the session's jobs go to; connects to nothing.
    """
    return json_serializer(session.get_bind(adoption.MAPPER).dialect)


def _write(session: Session, jobs: Sequence[Job]) -> None:
    """
    Write *jobs* and settle what becomes of their objects.

    Raises:
        InvalidJob: One of them is refused, before any SQL; it has left the session.
    """
    jobs = list(dict.fromkeys(jobs))
    if not jobs:
        return
    drafts = _drafts(session, jobs)
    book, tally = book_of(session), Tally()
    answers = intake.write(connection_of(session), drafts, moments=not _expires_soon(session, book), copying=False)
    existing: list[tuple[Job, Answer]] = []
    for job, draft in zip(jobs, drafts, strict=True):
        answer = answers[draft.id]
        answers[draft.id] = answer._replace(created=False)  # the next object with this id is a second one
        book.save(session, job)
        tally.counts[draft.topic, answer.created] += 1
        if answer.created:
            adoption.become(session, job, answer)
        else:
            existing.append((job, answer))
    book.note(session, tally)
    _settle_existing(session, existing)


def _expires_soon(session: Session, book: Book) -> bool:
    """
    Whether a commit has begun that will expire what is written now; until then an attribute can still be loaded.
    """
    return book.committing and session.expire_on_commit and not session.twophase


def _settle_existing(session: Session, jobs: Iterable[tuple[Job, Answer]]) -> None:
    """
    Settle the objects of jobs that were there already: last, because their rows may have got objects just now.
    """
    refusal: InvalidJob | None = None
    for job, answer in jobs:
        holder = adoption.held(session, job, answer.id)
        if holder is None:
            adoption.stand_for(session, job, answer.id)
        elif holder in session.deleted:
            _dismiss(session, job)
            refusal = refusal or InvalidJob(
                f"a job of topic {job.topic} has the key of job {answer.id}, which this session is about to delete:"
                " flush the deletion first"
            )
        else:
            adoption.give_way(session, job, holder)
            if is_flushing(session):
                book_of(session).gave_way.append((job, holder))
    if refusal is not None:
        raise refusal


def _drafts(session: Session, jobs: Iterable[Job]) -> list[Draft]:
    """
    Check *jobs*; those that are refused leave the session, so that its next flush can do without them.
    """
    serializer = serializer_of(session)
    drafts: list[Draft] = []
    refusal: InvalidJob | None = None
    for job in jobs:
        try:
            drafts.append(intake.draft(job, serializer))
        except InvalidJob as error:
            refusal = refusal or error
            _dismiss(session, job)
    if refusal is not None:
        raise refusal
    return drafts


def _dismiss(session: Session, job: Job) -> None:
    if job in session:
        session.expunge(job)


def _can_be_left(job: Job) -> bool:
    """
    Whether a flush can insert *job*: it has no key, was never written, and its time is no matter of the database's.
    """
    values = job.__dict__
    return (
        not values.get("idempotency_key")
        and job.created is None
        and ("available_at" not in values or isinstance(values["available_at"], datetime))
    )


@event.listens_for(Session, "transient_to_pending")
def _on_added(session: Session, instance: object) -> None:
    """
    Let a new job wait for the flush, or catch up on it where a flush that is running has passed our listener.
    """
    if not isinstance(instance, Job):
        return
    if (tracer := tracing.active) is not None:
        tracer.stamp(instance)
    book = book_of(session)
    if not book.watching and not is_flushing(session):
        # On the session itself, since those are called after those on the class: the consumer's own listeners
        # find new jobs in `session.new`, may change them, and may add some.
        event.listen(session, "before_flush", _write_waiting)
        book.watching = True
    if not is_flushing(session) or book.stage is not Stage.WRITTEN:
        book.added.append(instance)
    elif _can_be_left(instance):
        _drafts(session, [instance])
        book.save(session, instance)
        book.left.append(instance)
    else:
        _write(session, [instance])


@event.listens_for(Session, "before_flush")
def _on_flush(session: Session, *_: object) -> None:
    book = existing_book(session)
    if book is None:
        _check_changed(session)
        return
    book.stage = Stage.BEGUN
    book.gave_way.clear()
    if not book.watching:
        _write_waiting(session)


def _check_changed(session: Session) -> None:
    """
    Refuse what the UPDATE of a stored job could not write; that change is gone, and the rest of the flush can go on.

    Where a value was assigned, nobody knows yet what the engine's serializer makes of it; and ``flag_modified()`` tells
    of what was changed in place.
    """
    refusal: InvalidJob | None = None
    for job in session.dirty:
        for name in adoption.changed_documents(job) if isinstance(job, Job) else ():
            try:
                payload.encoded(job.__dict__[name], serializer_of(session), f"the {name}")
            except PayloadError as error:
                refusal = refusal or error
                session.expire(job, [name])
    if refusal is not None:
        raise refusal


def _write_waiting(session: Session, *_: object) -> None:
    """
    Write the jobs that were added since the last flush, by the consumer's listeners too.
    """
    _check_changed(session)
    book = book_of(session)
    waiting = book.waiting(session)
    book.stage = Stage.WRITTEN
    if waiting:
        _write(session, waiting)
        if _tells(session) and (job := adoption.held(session, waiting[-1], waiting[-1].id)) is not None:
            flag_dirty(job)  # a flush that finds nothing left to do would not tell the consumer's listeners of it
    book.added.clear()


def _tells(session: Session) -> bool:
    """
    Whether somebody besides us is told when a flush of *session* has done something.
    """
    return len(session.dispatch.after_flush) > 1 or bool(session.dispatch.after_flush_postexec)


@event.listens_for(Session, "after_transaction_create")
def _after_transaction_create(session: Session, _transaction: SessionTransaction) -> None:
    # A flush begins to execute. `order.job = Job(...)` in a listener of the consumer's adds the job before the order
    # points at it, so that only now it can be pointed at another one.
    book = existing_book(session)
    if book is not None and is_flushing(session):
        for job, holder in book.gave_way:
            adoption.redirect(session, job, holder)
        book.gave_way.clear()


@event.listens_for(Session, "after_flush")
def _after_flush(session: Session, _context: object) -> None:
    """
    Count what the flush inserted itself.
    """
    if (book := existing_book(session)) is None:
        return
    book.stage = Stage.FLUSHED
    tally = Tally()
    for job in book.left:
        if job.created is None:
            job.created = True
            tally.counts[job.topic, True] += 1
    book.left.clear()
    if tally:
        book.note(session, tally)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    book = existing_book(session)
    if book is not None and not session.in_nested_transaction():
        # The commit's flush is still to come: what it writes is announced as it is written.
        book.announcing = book.committing = True
        book.announce(session)


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    book = existing_book(session)
    if book is None or session.in_nested_transaction():
        return
    done = book.close()
    bind = session.get_bind(adoption.MAPPER) if done else None
    if isinstance(bind, Connection) and bind.in_transaction():
        commits.keep(bind, done)  # the session joined a transaction that is still open
    else:
        commits.publish(done)


@event.listens_for(Session, "after_soft_rollback")
def _after_soft_rollback(session: Session, ended: SessionTransaction) -> None:
    if (book := existing_book(session)) is not None:
        book.take_back(ended)


@event.listens_for(Session, "after_transaction_end")
def _after_transaction_end(session: Session, ended: SessionTransaction) -> None:
    # For a session that is closed without a word: that rolls back, but tells nobody. After a commit nothing is left.
    book = existing_book(session)
    if book is not None and ended.parent is None and book.is_open():
        book.take_back(ended)
        book.added = book.waiting(session)
        book.close()
