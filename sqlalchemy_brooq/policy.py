"""
Pure decisions: how long to wait, and what an attempt's end means for its job.

Knows no SQL, no clock and no thread.
"""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from sqlalchemy_brooq.errors import (
    CancelJob,
    Interruption,
    InvalidPayload,
    LeaseLost,
    PreserveAttempt,
    RetryLater,
    Shutdown,
    find_in,
)
from sqlalchemy_brooq.vocabulary import MAX_ERROR, Event, Outcome

_MAX_DOUBLINGS: Final = 62


class RetryRules(Protocol):
    """
    The part of a handler's options that decides about its next attempt.
    """

    @property
    def max_attempts(self) -> int:
        """
        How many failures are final.
        """

    @property
    def backoff_base(self) -> timedelta:
        """
        The pause after the first failure.
        """

    @property
    def backoff_max(self) -> timedelta:
        """
        The longest pause.
        """

    @property
    def on_invalid(self) -> str:
        """
        What becomes of a job whose payload is not what the handler takes: ``"retry"`` or ``"dead"``.
        """


def backoff(attempt: int, base: timedelta, cap: timedelta, *, rng: Callable[[], float] = random.random) -> timedelta:
    """
    Return the pause before the next attempt, jittered within [d/2, d].

    ``d`` doubles from *base* and stops at *cap*, so any attempt number is safe.

    Args:
        attempt: Number of the attempt that just ended, counted from 1, without those that an expired lease ended.
        base: The pause after the first attempt.
        cap: The longest pause.
        rng: Returns a float in [0, 1).
    """
    delay = min(base.total_seconds() * 2.0 ** min(max(attempt, 1) - 1, _MAX_DOUBLINGS), cap.total_seconds())
    return timedelta(seconds=delay * (0.5 + rng() / 2))


def decide(
    attempts: int,
    requeues: int,
    rules: RetryRules,
    error: BaseException | None,
    cause: Interruption | None = None,
) -> Outcome | None:
    """
    Return what is to be written about an attempt, or ``None`` when nothing may be.

    Args:
        attempts: How many times the job has been claimed, this attempt included.
        requeues: How many of those an expired lease ended.
        rules: The handler's limits.
        error: What the handler raised; ``None`` if it returned.
        cause: Why the engine interrupted it, if it did. It decides only when the handler ended with it.
    """
    if error is None:
        return Outcome(Event.DONE)
    if cause is not None and ended_by_interruption(error):
        if isinstance(cause, LeaseLost):
            return None
        if isinstance(cause, Shutdown):
            return Outcome(Event.REQUEUED, refund=True)
        return failure(attempts, requeues, rules, cause)
    return _answer_to(error, attempts, requeues, rules)


def ended_by_interruption(error: BaseException) -> bool:
    """
    Tell whether *error* is obedience to the engine: one of its causes, or a cancellation, or a group of these.

    What was raised ``from`` a cause is another exception, and the handler's own.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(ended_by_interruption(member) for member in error.exceptions)
    return isinstance(error, Interruption | CancelledError)


def _answer_to(error: BaseException, attempts: int, requeues: int, rules: RetryRules) -> Outcome:
    """
    Return the outcome that a handler's own exception asks for.
    """
    if find_in(error, CancelJob):
        return Outcome(Event.CANCELED, error=error_text(error))
    if find_in(error, PreserveAttempt):
        pause = backoff(attempts - requeues, rules.backoff_base, rules.backoff_max)
        return Outcome(Event.FAILED, delay=pause, refund=True, error=error_text(error))
    later = find_in(error, RetryLater)
    if later is not None:
        return failure(attempts, requeues, rules, error, min(later.delay, rules.backoff_max))
    if isinstance(error, InvalidPayload) and rules.on_invalid == "dead":
        return Outcome(Event.DEAD, error=error_text(error))
    return failure(attempts, requeues, rules, error)


def failure(
    attempts: int, requeues: int, rules: RetryRules, error: BaseException, delay: timedelta | None = None
) -> Outcome:
    """
    Return the outcome of a failed attempt: the job is dead if this was the last one (invariant 7).
    """
    text = error_text(error)
    number = attempts - requeues
    if number >= rules.max_attempts:
        return Outcome(Event.DEAD, error=text)
    if delay is None:
        delay = backoff(number, rules.backoff_base, rules.backoff_max)
    return Outcome(Event.FAILED, delay=delay, error=text)


def error_text(error: BaseException) -> str:
    """
    Return *error* as ``last_error`` keeps it: type and message, storable whatever its ``__str__`` does.

    Of a database error only the server's primary message is taken: SQLAlchemy's text
    and PostgreSQL's ``DETAIL`` quote the values of the row.
    """
    name = type(error).__name__
    try:
        message = _message(error)
    except BaseException as broken:  # noqa: BLE001 - __str__ is the handler's code, and may do anything
        message = f"(its __str__ raised {type(broken).__name__})"
    return storable(f"{name}: {message}" if message else name)


def _message(error: BaseException) -> str:
    """
    Return the message of *error*, without the values that a database error quotes.
    """
    original = getattr(error, "orig", None)
    source = original if isinstance(original, BaseException) else error
    primary = getattr(getattr(source, "diag", None), "message_primary", None)
    if primary:
        return str(primary)
    if source is not error:
        kind = type(source).__name__  # SQLAlchemy's own has the same, as a rule
        text = str(source) if kind == type(error).__name__ else f"{kind}: {source}"
        return next(iter(text.splitlines()), "")
    # SQLAlchemy's PendingRollbackError repeats the whole text of the database error before it.
    return str(error).partition(" Original exception was: ")[0]


def storable(text: str) -> str:
    """
    Return *text* cut to `MAX_ERROR` characters, with what PostgreSQL's ``text`` can't hold replaced.
    """
    clean = text[:MAX_ERROR].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return clean.encode("utf-8", "replace").decode()
