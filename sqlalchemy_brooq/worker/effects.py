"""
Settles attempts that have effects of their own in the settling transaction.

Transactional handlers, chained jobs and ``on_success`` callbacks: effect and outcome commit together, or neither
does. The fence is the last statement before the commit, so a claim that was lost meanwhile leaves no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from sqlalchemy_brooq import policy, producer
from sqlalchemy_brooq.claim import Claim, callbacks, chained
from sqlalchemy_brooq.errors import BrooqError, LifecycleError, TransactionMisused
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.sqlstates import BLOCKED, DATA_EXCEPTION, sqlstate
from sqlalchemy_brooq.statements.waiting import holder_waits_for_us, limit_lock_waits
from sqlalchemy_brooq.vocabulary import Event, Notice, Outcome
from sqlalchemy_brooq.worker.aioloop import in_thread
from sqlalchemy_brooq.worker.attempt import Attempt, Stage
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.journal import fields, safe_traceback
from sqlalchemy_brooq.worker.lending import Loan
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.port import RETRY_HELD, Settlement
from sqlalchemy_brooq.worker.results import Results
from sqlalchemy_brooq.worker.store import FATES, SETTLE, claim_columns, settlement_columns

LOCK_WAIT: Final = "500ms"
"""How long chained jobs wait at a time for whoever is writing the same keys; below deadlock_timeout."""

TOUCHED: Final = (
    "the job's own row was changed in the transaction that settles it, which was rolled back: raise brooq.CancelJob to"
    " call the job off"
)

Aside = Callable[[Callable[[], None]], Awaitable[None]]
T = TypeVar("T")


class Standoff(BrooqError, RuntimeError):  # noqa: N818 - names the situation
    """
    Somebody else holds the job's row for too long: to the lease's end, or while waiting for what the handler wrote.

    The latter is a deadlock that PostgreSQL can't see, because only one side waits: the other one, ours, keeps asking.
    """


class Sealing:
    """
    How far a settling transaction has come.
    """

    __slots__ = ("outcome", "written")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        """What it writes; ``None`` until the attempt is concluded here."""
        self.written = False
        """Whether it was committed."""


class Effects:
    """
    Opens sessions, lends them, and commits them together with the outcome.

    Args:
        desk: Where is written down what becomes of attempts.
        results: Turns return values into text.
        sessions: Makes a `Session` of the consumer's engine.
        async_sessions: Makes an `AsyncSession`; ``None`` where the queue has a plain engine.
        aside: Runs what may block, beside the loop.
    """

    def __init__(
        self,
        desk: Desk,
        results: Results,
        sessions: Callable[[], Session],
        async_sessions: Callable[[], AsyncSession] | None,
        aside: Aside = in_thread,
    ) -> None:
        self._desk = desk
        self._results = results
        self._sessions = sessions
        self._async_sessions = async_sessions
        self._aside = aside

    # -- on a thread, with a Session

    def transactional(self, attempt: Attempt, call: Callable[[Session], Any]) -> None:
        """
        Run a plain transactional handler by *call*, and commit what it wrote with its outcome.
        """
        self._run(attempt, call)

    def settle_with(self, attempt: Attempt, text: str | None) -> None:
        """
        Write an ordinary handler's success, its callbacks and its chained jobs in one transaction.
        """
        self._run(attempt, text=text)

    def _run(self, attempt: Attempt, call: Callable[[Session], Any] | None = None, text: str | None = None) -> None:
        with self._recorded(attempt) as sealing, self._opened() as loan:
            if call is not None:
                with loan.lent():
                    text = self._results.text(attempt, call(loan.session))
            if callbacks(attempt.claim):
                with loan.lent():
                    _call_back(attempt.claim, loan.session)
            self._prepare(attempt, loan)
            attempt.break_off = loan.break_off
            if not attempt.conclude():
                return  # the engine gave it up; letting the session go rolls it back
            sealing.outcome = Outcome(Event.DONE, result=text)
            while (written := self._fence(attempt, loan, sealing.outcome)) is None:
                time.sleep(RETRY_HELD)
            if written:
                loan.commit()
            sealing.written = written

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Loan]:
        loan = Loan(self._sessions())
        try:
            loan.begin()
            yield loan
        finally:
            loan.let_go()

    # -- in the loop, with an AsyncSession

    async def atransactional(self, attempt: Attempt) -> None:
        """
        Run an async transactional handler, and commit what it wrote with its outcome.
        """
        await self._arun(attempt, partial(attempt.handler.function, attempt.claim))

    async def asettle_with(self, attempt: Attempt, text: str | None) -> None:
        """
        Write an async handler's success, its callbacks and its chained jobs in one transaction.

        With a plain engine this is done on a thread: a plain callback may block.
        """
        if self._async_sessions is None:
            await self._aside(lambda: self.settle_with(attempt, text))
        else:
            await self._arun(attempt, text=text)

    async def _arun(
        self, attempt: Attempt, call: Callable[[AsyncSession], Awaitable[Any]] | None = None, text: str | None = None
    ) -> None:
        """
        As `_run`, without blocking the loop.
        """
        with self._recorded(attempt) as sealing:
            async with self._aopened() as (session, loan):
                if call is not None:
                    with loan.lent():
                        text = self._results.text(attempt, await call(session))
                if callbacks(attempt.claim):
                    with loan.lent():
                        await _acall_back(attempt.claim, session)
                await _spawn(session, self._prepare, attempt, loan)
                attempt.break_off = loan.break_off
                if not attempt.conclude():
                    return
                outcome = sealing.outcome = Outcome(Event.DONE, result=text)
                while (written := await _spawn(session, self._fence, attempt, loan, outcome)) is None:  # noqa: ASYNC110 - a row's lock has no event
                    await asyncio.sleep(RETRY_HELD)
                if written:
                    await _spawn(session, loan.commit)
                sealing.written = written

    @contextlib.asynccontextmanager
    async def _aopened(self) -> AsyncIterator[tuple[AsyncSession, Loan]]:
        if self._async_sessions is None:
            raise LifecycleError("an async transactional handler needs a queue with an AsyncEngine")
        session = self._async_sessions()
        loan = Loan(session.sync_session)
        try:
            await _spawn(session, loan.begin)
            yield session, loan
        finally:
            await _spawn(session, loan.let_go)

    # -- both

    @contextlib.contextmanager
    def _recorded(self, attempt: Attempt) -> Iterator[Sealing]:
        """
        Once the session is let go, write down how its attempt ended; before it was concluded, an error passes.
        """
        sealing = Sealing()
        try:
            yield sealing
        except BaseException as error:
            if sealing.outcome is None:
                raise  # the handler's, or as good as that
            if not sealing.written:
                self._failed(attempt, error)
                return
        if sealing.written and sealing.outcome is not None:
            self._desk.written(attempt, sealing.outcome)
            attempt.outcome = sealing.outcome
        elif sealing.outcome is not None:
            # Lost, as a rule; then the fence refuses this too. But the handler itself may have changed the row, in
            # the transaction that is now rolled back: then the job is still ours, and nobody else would record it.
            if attempt.span is not None:
                attempt.span.end(None)
            self._desk.fail(attempt, TransactionMisused(TOUCHED))

    def _prepare(self, attempt: Attempt, loan: Loan) -> None:
        """
        Write everything but the outcome: the chained jobs, and what the session still holds back.
        """
        # One that has a row already is there, whoever wrote it.
        jobs = [job for job in chained(attempt.claim) if instance_state(job).key is None]
        for job in jobs:
            job.meta = {**(job.meta or {}), "chained_by": str(attempt.claim.id)}
        if any(job.idempotency_key for job in jobs):
            _enqueue_in_turns(attempt, loan, jobs)
        elif jobs:
            producer.enqueue_many(loan.session, jobs)
        loan.finish()

    def _fence(self, attempt: Attempt, loan: Loan, outcome: Outcome) -> bool | None:
        """
        Write the outcome; False if the claim is lost, ``None`` if somebody else holds the row at the moment.

        The batch's statement serves: it never waits, so it can neither deadlock nor abort the transaction.
        """
        claim, connection = attempt.claim, loan.connection
        if self._write(claim, connection, outcome):
            attempt.may_have_written(outcome)
            return True
        fate = connection.execute(FATES, claim_columns(self._desk.worker, [claim])).first()
        if fate is None or not fate.held:
            return False
        if time.monotonic() >= attempt.lease_end:
            raise Standoff(f"the row of job {claim.id} was held by somebody else until its lease ran out")
        if connection.scalar(holder_waits_for_us(), {"job_id": claim.id}):
            raise Standoff(f"whoever holds the row of job {claim.id} waits for what its handler has written")
        attempt.settling_since = time.monotonic()  # the server answers: it is not frozen
        return None

    def _write(self, claim: Claim, connection: Connection, outcome: Outcome) -> bool:
        """
        Write *outcome*, without its result where the database refuses that; False if the row was not touched.
        """
        parameters = {"worker": self._desk.worker, **settlement_columns([Settlement(claim, outcome)])}
        if outcome.result is None:
            return not connection.execute(SETTLE, parameters).scalar_one()
        try:
            with connection.begin_nested():
                return not connection.execute(SETTLE, parameters).scalar_one()
        except DBAPIError as error:
            if not (sqlstate(error) or "").startswith(DATA_EXCEPTION):
                raise
            text = "the result of %s %s can't be stored; the job is done without it: %s"
            extra = {"event": Notice.RESULT_LEFT_OUT.value, **fields(claim)}
            log.error(text, claim.topic, claim.id, policy.error_text(error), extra=extra)
            return self._write(claim, connection, replace(outcome, result=None))

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        """
        Record that the settling transaction failed. If it committed all the same, the fence refuses this.
        """
        trace = safe_traceback(error)
        if attempt.span is not None:
            attempt.span.trace = trace
        self._desk.journal.raised(attempt.claim, trace)
        self._desk.fail(attempt, error)


def _call_back(claim: Claim, session: Session) -> None:
    for callback in _each(claim):
        answer = callback(session)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise TypeError(f"on_success() was given {callback!r}, which is async: here it takes a plain function")


async def _acall_back(claim: Claim, session: AsyncSession) -> None:
    for callback in _each(claim):
        answer = callback(session)
        if not inspect.isawaitable(answer):
            raise TypeError(f"on_success() was given {callback!r}, which is not async: here it takes an async function")
        await answer


def _each(claim: Claim) -> Iterator[Callable[[Any], Any]]:
    """
    Yield the callbacks of *claim* in order, with those that are given meanwhile.
    """
    called = 0
    while len(found := callbacks(claim)) > called:
        yield found[called]
        called += 1


def _enqueue_in_turns(attempt: Attempt, loan: Loan, jobs: Sequence[Job]) -> None:
    """
    Enqueue jobs that may have to wait for strangers, who are about to write the same keys: a little while at a time.

    Between two tries nothing of theirs is locked, so that a deadlock dissolves before PostgreSQL looks for one.
    """
    while True:
        try:
            with loan.session.begin_nested():
                before = loan.connection.scalar(limit_lock_waits(), {"limit": LOCK_WAIT})
                producer.enqueue_many(loan.session, jobs)
                loan.connection.execute(limit_lock_waits(), {"limit": before})
        except DBAPIError as error:
            if sqlstate(error) not in BLOCKED or attempt.stage is not Stage.RUNNING:
                raise
        else:
            return


async def _spawn(session: AsyncSession, work: Callable[..., T], *arguments: Any) -> T:
    """
    Run sync *work* on what belongs to an `AsyncSession`, and to its end: broken off, it could lose the connection.

    An interruption is for the handler. One that comes now is raised once the work is done.
    """
    task = asyncio.ensure_future(session.run_sync(lambda _: work(*arguments)))
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is not None and not task.cancelled() and task.exception() is None:
        raise canceled
    return task.result()
