"""
Settles attempts that have effects of their own in the settling transaction.

Transactional handlers, chained jobs and ``on_success`` callbacks: effect and outcome commit together, or neither
does. The fence is the last statement before the commit, so a claim that was lost meanwhile leaves no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq import policy, producer
from sqlalchemy_brooq.claim import Claim, callbacks, chained
from sqlalchemy_brooq.errors import LifecycleError, TransactionMisused
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.vocabulary import Event, Outcome
from sqlalchemy_brooq.worker.aioloop import in_thread
from sqlalchemy_brooq.worker.attempt import Attempt, InFlight
from sqlalchemy_brooq.worker.connection import READ_COMMITTED
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.port import Settlement
from sqlalchemy_brooq.worker.store import FATES, SETTLE, claim_columns, settlement_columns

RETRY_HELD: Final = 0.05
"""Seconds before the fence is tried again while somebody else holds the row's lock."""
ENDINGS: Final = ("commit", "rollback", "close", "reset", "invalidate", "prepare")
"""What a handler may not do with the session that it was lent."""

ResultText = Callable[[Attempt, Any], str | None]


class Effects:
    """
    Opens sessions, lends them, and commits them together with the outcome.

    Args:
        sessions: Makes a `Session` of the consumer's engine.
        async_sessions: Makes an `AsyncSession`; ``None`` where the queue has a plain engine.
        worker: This worker's identity, half of the fence.
        result_text: Returns a handler's result as JSON text.
        settle: Takes an attempt whose outcome goes the ordinary way after all.
        in_flight: The table of attempts.
        journal: Is told of outcomes.
    """

    def __init__(
        self,
        sessions: Callable[[], Session],
        async_sessions: Callable[[], AsyncSession] | None,
        worker: str,
        result_text: ResultText,
        settle: Callable[[Attempt], None],
        in_flight: InFlight,
        journal: Journal,
    ) -> None:
        self._sessions = sessions
        self._async_sessions = async_sessions
        self._worker = worker
        self._result_text = result_text
        self._settle = settle
        self._in_flight = in_flight
        self._journal = journal

    # -- on a thread, with a Session

    def transactional(self, attempt: Attempt) -> None:
        """
        Run a plain transactional handler, and commit what it wrote with its outcome.
        """
        with self._opened() as session:
            with lent(session):
                text = self._result_text(attempt, attempt.handler.function(attempt.claim, session))
                self._call_back(attempt.claim, session)
            self._seal(session, attempt, text)

    def settle_with(self, attempt: Attempt, text: str | None) -> None:
        """
        Write an ordinary handler's success, its callbacks and its chained jobs in one transaction.
        """
        with self._opened() as session:
            with lent(session):
                self._call_back(attempt.claim, session)
            self._seal(session, attempt, text)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Session]:
        with self._sessions() as session:
            session.connection(**_named_level())
            yield session

    def _call_back(self, claim: Claim, session: Session) -> None:
        for callback in callbacks(claim):
            if asyncio.iscoroutine(answer := callback(session)):
                answer.close()
                raise TypeError(f"{callback!r} is async: on_success() takes a plain function here")

    def _seal(self, session: Session, attempt: Attempt, text: str | None) -> None:
        """
        Enqueue the chained jobs, and write the outcome as the last statement before the commit.
        """
        self._chain(session, attempt.claim)
        if not attempt.conclude():
            return  # the engine gave it up; leaving the session rolls it back
        outcome = Outcome(Event.DONE, result=text)
        try:
            while (written := self._fence(session, attempt.claim, outcome)) is None:
                time.sleep(RETRY_HELD)
            if written:
                attempt.tried = outcome
                session.commit()
        except BaseException as error:  # noqa: BLE001 - concluded: nobody else will record it
            self._failed(attempt, error)
        else:
            self._over(attempt, outcome, written=written)

    # -- in the loop, with an AsyncSession

    async def atransactional(self, attempt: Attempt) -> None:
        """
        Run an async transactional handler, and commit what it wrote with its outcome.
        """
        async with self._aopened() as session:
            with lent(session.sync_session):
                text = self._result_text(attempt, await attempt.handler.function(attempt.claim, session))
                await self._acall_back(attempt.claim, session)
            await self._aseal(session, attempt, text)

    async def asettle_with(self, attempt: Attempt, text: str | None) -> None:
        """
        Write an async handler's success, its callbacks and its chained jobs in one transaction.

        With a plain engine this is done on a thread: a plain callback may block.
        """
        if self._async_sessions is None:
            await in_thread(lambda: self.settle_with(attempt, text))
            return
        async with self._aopened() as session:
            with lent(session.sync_session):
                await self._acall_back(attempt.claim, session)
            await self._aseal(session, attempt, text)

    @contextlib.asynccontextmanager
    async def _aopened(self) -> AsyncIterator[AsyncSession]:
        if self._async_sessions is None:
            raise LifecycleError("an async transactional handler needs a queue with an AsyncEngine")
        async with self._async_sessions() as session:
            await session.connection(**_named_level())
            yield session

    async def _acall_back(self, claim: Claim, session: AsyncSession) -> None:
        for callback in callbacks(claim):
            answer = callback(session)
            if not asyncio.iscoroutine(answer):
                raise TypeError(f"{callback!r} is not async: on_success() takes an async function here")
            await answer

    async def _aseal(self, session: AsyncSession, attempt: Attempt, text: str | None) -> None:
        """
        As `_seal`, without blocking the loop.
        """
        await session.run_sync(self._chain, attempt.claim)
        if not attempt.conclude():
            return
        outcome = Outcome(Event.DONE, result=text)
        try:
            while (written := await session.run_sync(self._fence, attempt.claim, outcome)) is None:  # noqa: ASYNC110 - a row's lock has no event
                await asyncio.sleep(RETRY_HELD)
            if written:
                attempt.tried = outcome
                await session.commit()
        except BaseException as error:  # noqa: BLE001 - concluded: nobody else will record it
            self._failed(attempt, error)
        else:
            self._over(attempt, outcome, written=written)

    # -- both

    def _chain(self, session: Session, claim: Claim) -> None:
        jobs = chained(claim)
        for job in jobs:
            job.meta = {**(job.meta or {}), "chained_by": str(claim.id)}
        if jobs:
            producer.enqueue_many(session, jobs)
        session.flush()

    def _fence(self, session: Session, claim: Claim, outcome: Outcome) -> bool | None:
        """
        Write the outcome; False if the claim is lost, ``None`` if somebody else holds the row at the moment.

        The batch's statement serves: it never waits, so it can neither deadlock nor abort the transaction.
        """
        mapper = _named_level()["bind_arguments"]
        parameters = {"worker": self._worker, **settlement_columns([Settlement(claim, outcome)])}
        if not session.execute(SETTLE, parameters, bind_arguments=mapper).scalar_one():
            return True
        fate = session.execute(FATES, claim_columns(self._worker, [claim]), bind_arguments=mapper).first()
        return None if fate is not None and fate.held else False

    def _over(self, attempt: Attempt, outcome: Outcome, *, written: bool) -> None:
        self._in_flight.remove([attempt])
        if written:
            self._journal.settled(attempt.claim, outcome)
        else:
            self._journal.lost(attempt.claim)

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        """
        Record that the settling transaction failed. If it committed all the same, the fence refuses this.
        """
        claim = attempt.claim
        self._journal.raised(claim, error)
        attempt.outcome = policy.failure(claim.attempt, claim.requeues, attempt.handler.options, error)
        self._settle(attempt)


def _named_level() -> dict[str, Any]:
    """
    Return how a session's connection is asked for: ours among several binds, at a level that is named.

    Under REPEATABLE READ the fence would meet every heartbeat of the meantime as a serialization failure.
    """
    return {
        "bind_arguments": {"mapper": inspect(Job)},
        "execution_options": {"isolation_level": READ_COMMITTED},
    }


@contextlib.contextmanager
def lent(session: Session) -> Iterator[None]:
    """
    Refuse to end the transaction of *session* while a handler has it; savepoints are the handler's own.

    Raises:
        TransactionMisused: It was ended all the same, by way of its connection or its transaction object.
    """
    root = session.get_transaction()
    for name in ENDINGS:
        setattr(session, name, _refusal(name))
    try:
        yield
    finally:
        for name in ENDINGS:
            delattr(session, name)
    connection = session.connection(bind_arguments={"mapper": inspect(Job)}) if session.in_transaction() else None
    if session.get_transaction() is not root or connection is None or not connection.in_transaction():
        raise TransactionMisused(
            "the handler ended the transaction that it was lent: return to commit it, raise to roll it back"
        )


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TransactionMisused(
            f"session.{name}() is not a transactional handler's to call: return to commit, raise to roll back, "
            "and use session.begin_nested() for a part that may fail"
        )

    return refuse
