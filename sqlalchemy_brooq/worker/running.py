"""
Runs one attempt: what stands around its handler, the call, and what becomes of what came of it.

Owns what the end of a handler means; what it means for the job is `policy`'s to say, and the pump's or `effects`' to
write. Knows neither slots nor threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum, auto
from functools import partial
from typing import Any

from sqlalchemy_brooq import logs, policy, tracing
from sqlalchemy_brooq.claim import Claim, callbacks, chained
from sqlalchemy_brooq.errors import RetryLater, Signal, find_in
from sqlalchemy_brooq.vocabulary import SUCCESS, Event, Outcome
from sqlalchemy_brooq.worker.attempt import Attempt
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.effects import Effects
from sqlalchemy_brooq.worker.interrupting import call
from sqlalchemy_brooq.worker.journal import safe_traceback
from sqlalchemy_brooq.worker.results import Results

Around = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class Ending(Enum):
    """
    Stands for the text of a result where there is none.
    """

    CUT_OFF = auto()
    """The handler didn't get as far as returning."""
    SETTLED = auto()
    """The outcome has been written, or was somebody else's to write."""


class Runner:
    """
    Runs attempts to their ends, each in a context of its own.

    Args:
        desk: Where their ends are written down.
        effects: Settles what has effects of its own in the settling transaction.
        results: Turns return values into text.
        around: The consumer's context manager around each handler.
    """

    def __init__(self, desk: Desk, effects: Effects, results: Results, around: Around | None = None) -> None:
        self._desk = desk
        self._effects = effects
        self._results = results
        self._around = around

    # -- plain handlers

    def called(self, attempt: Attempt) -> None:
        """
        Run a plain attempt, on the calling thread.
        """
        text: str | Ending | None = Ending.CUT_OFF
        try:
            _enter(attempt)
            if self._around is None:
                text = self._work_plain(attempt)
            else:
                with self._surroundings(self._around):
                    text = self._work_plain(attempt)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is an outcome, SystemExit too
            self._failed(attempt, error)
        else:
            self._succeeded(attempt, text)
        finally:
            _leave(attempt)

    def _work_plain(self, attempt: Attempt) -> str | Ending | None:
        """
        Call the handler, and return its result as text; `Ending.SETTLED` where `effects` has written the outcome.
        """
        if attempt.handler.options.transactional:
            self._effects.transactional(attempt, partial(call, attempt))
            return Ending.SETTLED
        text = self._results.text(attempt, call(attempt))
        if has_effects(attempt.claim):
            self._effects.settle_with(attempt, text)
            return Ending.SETTLED
        return text

    @staticmethod
    def _surroundings(make: Around) -> AbstractContextManager[Any]:
        around = make()
        if not isinstance(around, AbstractContextManager):
            raise TypeError(f"around gave {around!r} for a plain handler: it takes a plain context manager")
        return around

    # -- async def handlers

    async def awaited(self, attempt: Attempt, ended: Callable[[Attempt], object]) -> None:
        """
        Run an async attempt, as a task of its own; *ended* is called with it at last.
        """
        text: str | Ending | None = Ending.CUT_OFF
        try:
            _enter(attempt)
            if self._around is None:
                text = await self._work_async(attempt)
            else:
                async with self._async_surroundings(self._around):
                    text = await self._work_async(attempt)
        except BaseException as error:  # noqa: BLE001 - as for plain ones; a task's SystemExit would end the loop
            self._failed(attempt, error)
        else:
            self._succeeded(attempt, text)
        finally:
            attempt.task = None
            _leave(attempt)
            ended(attempt)

    async def _work_async(self, attempt: Attempt) -> str | Ending | None:
        """
        As `_work_plain`.
        """
        if attempt.handler.options.transactional:
            await self._effects.atransactional(attempt)
            return Ending.SETTLED
        text = self._results.text(attempt, await attempt.handler.function(attempt.claim))
        if has_effects(attempt.claim):
            await self._effects.asettle_with(attempt, text)
            return Ending.SETTLED
        return text

    @staticmethod
    def _async_surroundings(make: Around) -> AbstractAsyncContextManager[Any]:
        around = make()
        if isinstance(around, AbstractAsyncContextManager):
            return around
        return _as_async(around)

    # -- the end of an attempt

    def _succeeded(self, attempt: Attempt, text: str | Ending | None) -> None:
        if text is Ending.CUT_OFF:
            self._failed(attempt, RuntimeError("around swallowed what the handler raised: it must let it pass"))
        elif text is not Ending.SETTLED and attempt.conclude():
            self._desk.settle(attempt, SUCCESS if text is None else Outcome(Event.DONE, result=text))

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        claim, options = attempt.claim, attempt.handler.options
        # All that reads the error comes first: its __str__ is the handler's code, and may do anything, or never end.
        # Until the attempt is concluded, the watchdog can still end it.
        outcome = policy.decide(claim.attempt, claim.requeues, options, error, claim.cause)
        expected = find_in(error, Signal) or (claim.cause and policy.ended_by_interruption(error))
        trace = None if expected else safe_traceback(error)
        if attempt.span is not None:
            attempt.span.trace = trace
        if attempt.conclude():
            if outcome is None:
                self._desk.lost(attempt)
            else:
                self._desk.settle(attempt, outcome)
        elif attempt.given_up or policy.ended_by_interruption(error):
            return  # otherwise the surroundings raised, after the outcome was written
        if trace is not None:
            self._desk.journal.raised(claim, trace)
        later = find_in(error, RetryLater)
        if later is not None and later.delay > options.backoff_max:
            self._desk.journal.cut(claim, later.delay, options.backoff_max)


def _enter(attempt: Attempt) -> None:
    """
    Let the log lines and the spans of this context, which is the attempt's own, be about its job.
    """
    logs.enter(attempt.claim)
    if (tracer := tracing.active) is not None:
        attempt.span = tracer.begin(attempt.claim)


def _leave(attempt: Attempt) -> None:
    if attempt.span is not None:
        attempt.span.end(attempt.outcome)


def has_effects(claim: Claim) -> bool:
    """
    Tell whether *claim* has more to write than its outcome.
    """
    return bool(chained(claim) or callbacks(claim))


@contextlib.asynccontextmanager
async def _as_async(manager: AbstractContextManager[Any]) -> Any:
    with manager:
        yield
