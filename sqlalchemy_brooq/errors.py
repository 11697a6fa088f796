"""
What this library raises, and what a handler may raise at it.

::

    Exception
     ├─ BrooqError                 root of what the library raises at its callers
     │   ├─ ConfigError            (ValueError)   settings refused, all problems at once
     │   ├─ InvalidJob             (ValueError)   topic, key, priority, time of a job refused
     │   │   └─ PayloadError                      a payload that jsonb can't hold
     │   ├─ InvalidPayload         (ValueError)   a payload is not what its handler takes
     │   ├─ RegistrationError      (ValueError)   a handler that can't be registered
     │   ├─ ProtectedColumn        (AttributeError) state and lease columns are the engine's
     │   ├─ JobNotFound            (LookupError)
     │   ├─ SchemaMismatch         (RuntimeError) table missing, older or newer
     │   ├─ LifecycleError         (RuntimeError) start, stop and close in the wrong place
     │   └─ TransactionMisused     (RuntimeError) a handler ended the transaction it was lent
     └─ Signal                     raised by a handler to say what becomes of its job
         ├─ RetryLater
         ├─ PreserveAttempt
         └─ CancelJob
    BaseException
     └─ Interruption               why the engine interrupts a handler
         ├─ AttemptTimeout
         ├─ MaxExecutionExceeded
         ├─ LeaseLost
         └─ Shutdown

Knows nothing of SQL, threads or settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from sqlalchemy_brooq.durations import parse_duration, shown

E = TypeVar("E", bound=BaseException)


class BrooqError(Exception):
    """
    The root of every error that this library raises at its callers.
    """


class ConfigError(BrooqError, ValueError):
    """
    Settings were rejected; `problems` lists every one, not just the first.

    Args:
        problems: What is wrong, one text each.
    """

    problems: tuple[str, ...]
    """One text for each setting that was refused: its name, its value, and what it must be."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class InvalidJob(BrooqError, ValueError):  # noqa: N818 - names the caller's situation
    """
    A job's topic, key, priority or time breaks a rule; no SQL was sent.
    """


class PayloadError(InvalidJob):
    """
    A payload is not a value that PostgreSQL's ``jsonb`` can hold; no SQL was sent.
    """


class InvalidPayload(BrooqError, ValueError):  # noqa: N818 - names the handler's situation
    """
    A payload is not what the handler's annotation says; `problems` names each field that is wrong.

    A handler may raise it too, on a closer look at its payload. The option ``on_invalid`` says what becomes of the job.

    Args:
        problems: What is wrong, one text each. They get into ``last_error`` and the log: name fields, not values.
    """

    problems: tuple[str, ...]
    """One text for each field that is wrong."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RegistrationError(BrooqError, ValueError):
    """
    A handler can't be registered as asked.
    """


class ProtectedColumn(BrooqError, AttributeError):  # noqa: N818 - names the caller's situation
    """
    State and lease columns of a job are written by the engine alone.
    """


class JobNotFound(BrooqError, LookupError):  # noqa: N818 - the contract's name
    """
    No job has this id.

    Args:
        job_id: The id that was asked for.
    """

    job_id: UUID
    """The id that was asked for."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"no job has the id {job_id}: it never existed here, was rolled back, or retention deleted it")
        self.job_id = job_id


class SchemaMismatch(BrooqError, RuntimeError):  # noqa: N818 - names the caller's situation
    """
    The table ``job`` is missing, or not of the revision that this version needs.
    """


class LifecycleError(BrooqError, RuntimeError):
    """
    ``start``, ``stop`` or ``close`` was called where it can't work.
    """


class TransactionMisused(BrooqError, RuntimeError):  # noqa: N818 - names the caller's situation
    """
    A transactional handler tried to end the transaction that it was lent.
    """


class Signal(Exception):  # noqa: N818 - said, not suffered
    """
    What a handler raises to say what becomes of its job.

    Signals are ordinary exceptions, so that they can be chained and grouped:
    ``raise MailServerDown from brooq.RetryLater(delay)`` is understood.
    """


class RetryLater(Signal):
    """
    Try again after *delay*; counts as a failed attempt.

    The wait is cut at the handler's ``backoff_max``. On the last attempt the job is dead all the same.

    Args:
        delay: A positive ``timedelta`` or zero, or text such as ``"30s"``.
        message: What ``last_error`` and the log say of it; names the delay if not given.

    Raises:
        TypeError: *delay* is neither.
        ValueError: *delay* is negative, or text that is no duration.
    """

    def __init__(self, delay: timedelta | str, message: str | None = None) -> None:
        if not isinstance(delay, timedelta | str):
            raise TypeError(
                f"RetryLater takes a timedelta, or text such as '30s', not {type(delay).__name__} {shown(delay)}"
            )
        self.delay = parse_duration(delay)
        super().__init__(message or f"retry in {self.delay}")


class PreserveAttempt(Signal):
    """
    Fail with backoff, but give the charged attempt back: the job can't die of it.
    """


class CancelJob(Signal):
    """
    Call the job off, whatever attempts are left.
    """


class Interruption(BaseException):
    """
    Why the engine interrupts a handler.

    A ``BaseException``, so that a handler's own ``except Exception`` can't swallow it.
    """


class AttemptTimeout(Interruption):
    """
    The attempt ran for its ``attempt_timeout``.
    """


class MaxExecutionExceeded(Interruption):
    """
    The attempt went on to its ``max_execution_timeout``, ignoring the first timeout.
    """


class LeaseLost(Interruption):
    """
    The row is no longer this worker's: canceled, reaped, or not renewed for a whole lease.
    """


class Shutdown(Interruption):
    """
    The worker is stopping, and its grace period is over.
    """


def delay_of(error: BaseException) -> timedelta | None:
    """
    Return the delay that a `RetryLater` in *error*, its causes or its group asks for, as a ``timedelta``, or ``None``.
    """
    found = find_in(error, RetryLater)
    return found.delay if found else None


def find_in(error: BaseException, kind: type[E]) -> E | None:
    """
    Return the first *kind* in *error*, in what it was raised ``from``, and in its group.
    """
    seen: set[int] = set()
    queue = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, kind):
            return current
        if isinstance(current, BaseExceptionGroup):
            queue.extend(current.exceptions)
        if current.__cause__ is not None:
            queue.append(current.__cause__)
    return None
