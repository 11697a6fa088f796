"""
Faults on demand: within one of these blocks, the first attempt at each job meets it.

Owns when a fault strikes, and what it does. That nothing gets through after a crash is the shared connection's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Engine, event

from sqlalchemy_brooq.errors import AttemptTimeout, Interruption, Shutdown
from sqlalchemy_brooq.testing.shared import WorkerCrashed
from sqlalchemy_brooq.testing.standin import StandIn
from sqlalchemy_brooq.worker.attempt import Attempt
from sqlalchemy_brooq.worker.executor import STOPPING
from sqlalchemy_brooq.worker.store import SETTLE
from sqlalchemy_brooq.worker.watchdog import timed_out

#: What can interrupt a handler by demand, in the words of the engine.
CAUSES: Final[Mapping[type[Interruption], Callable[[Attempt], Interruption]]] = {
    AttemptTimeout: lambda attempt: timed_out(attempt.handler.options),
    Shutdown: lambda _: Shutdown(STOPPING),
}
_faults: Final[ContextVar[tuple[Fault, ...]]] = ContextVar("brooq_testing_faults", default=())

Strike = Callable[[StandIn, Attempt], AbstractContextManager[Any]]
OnStatement = Callable[[str, Any], None]
"""Is told of each statement before it is sent: its text, and what SQLAlchemy was asked to run."""


class Fault:
    """
    A fault that strikes the first attempt at each job.
    """

    def __init__(self, name: str, topic: str | None, strike: Strike) -> None:
        self.name = name
        self.topic = topic
        """The one topic whose jobs it strikes; ``None`` means all."""
        self.struck: set[UUID] = set()
        """The jobs that it has struck."""
        self._strike = strike

    def strike(self, stand_in: StandIn, attempt: Attempt) -> AbstractContextManager[Any]:
        """
        Return what to enter around *attempt*.
        """
        claim = attempt.claim
        if claim.id in self.struck or self.topic not in {None, claim.topic}:
            return contextlib.nullcontext()
        self.struck.add(claim.id)
        return self._strike(stand_in, attempt)


@contextlib.contextmanager
def active(stand_in: StandIn, attempt: Attempt) -> Iterator[None]:
    """
    Let the faults that are on demand strike *attempt*.
    """
    with ExitStack() as stack:
        for fault in _faults.get():
            stack.enter_context(fault.strike(stand_in, attempt))
        yield


@contextlib.contextmanager
def watched(engine: Engine, on_statement: OnStatement) -> Iterator[None]:
    """
    Call *on_statement* before each statement that goes to *engine*.
    """

    def listener(_connection: Any, _cursor: Any, text: str, _parameters: Any, context: Any, _many: bool) -> None:
        on_statement(text, getattr(context, "invoked_statement", None))

    event.listen(engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", listener)


def lose_lease(topic: str | None = None, *, told: bool = False) -> AbstractContextManager[Fault]:
    """
    Let the lease run out while the handler runs, and the job return to circulation.

    The handler goes on to its end, as one does that holds up its worker's heartbeat; nothing is then written of its
    outcome. `drain` goes on with the next attempt at the job.

    Args:
        topic: The one topic whose jobs it strikes; all if not given.
        told: Whether the handler hears of it: ``claim.cause`` is a `LeaseLost` from its beginning.
    """

    @contextlib.contextmanager
    def strike(stand_in: StandIn, attempt: Attempt) -> Iterator[None]:
        stand_in.expire(attempt.claim.id)
        if told:
            stand_in.desk.lose(attempt)
        yield

    return _demanded("lose_lease", topic, strike)


def crash_before_settle(topic: str | None = None) -> AbstractContextManager[Fault]:
    """
    Let the worker crash after the handler has ended, and before its outcome is written.

    What the handler has committed is there; a transaction that was to commit with the outcome is not. The job keeps
    its lease: `advance` past ``queue.config.lease``, and the next `drain` runs it again.

    Args:
        topic: The one topic whose jobs it strikes; all if not given.
    """

    @contextlib.contextmanager
    def strike(stand_in: StandIn, _attempt: Attempt) -> Iterator[None]:
        def on_statement(_text: str, statement: Any) -> None:
            if statement is SETTLE:
                crash(stand_in)

        with watched(stand_in.engine, on_statement):
            yield

    return _demanded("crash_before_settle", topic, strike)


def crash_after_commit(topic: str | None = None) -> AbstractContextManager[Fault]:
    """
    Let the worker crash once the transaction that wrote the outcome is committed, before it hears of that.

    Outcome and effects are there, and the job is not run again.

    Args:
        topic: The one topic whose jobs it strikes; all if not given.
    """

    @contextlib.contextmanager
    def strike(stand_in: StandIn, _attempt: Attempt) -> Iterator[None]:
        def on_statement(_text: str, statement: Any) -> None:
            if statement is SETTLE:
                stand_in.shared.committed = lambda: crash(stand_in)

        try:
            with watched(stand_in.engine, on_statement):
                yield
        finally:
            stand_in.shared.committed = lambda: None

    return _demanded("crash_after_commit", topic, strike)


def interrupt(cause: type[Interruption], topic: str | None = None) -> AbstractContextManager[Fault]:
    """
    Interrupt the handler from its beginning: a plain one sees it by its claim, an ``async def`` one is canceled.

    Args:
        cause: `AttemptTimeout` or `Shutdown`. For a lease that is lost there is `lose_lease`.
        topic: The one topic whose jobs it strikes; all if not given.

    Raises:
        TypeError: *cause* is another one.
    """
    if cause not in CAUSES:
        raise TypeError(
            f"interrupt() takes AttemptTimeout or Shutdown, not {cause!r}; lose_lease(told=True) is another"
        )

    @contextlib.contextmanager
    def strike(_stand_in: StandIn, attempt: Attempt) -> Iterator[None]:
        attempt.interrupt(CAUSES[cause](attempt))
        yield

    return _demanded("interrupt", topic, strike)


def crash(stand_in: StandIn) -> None:
    """
    Let nothing through any more, and end what is running.
    """
    stand_in.shared.is_cut = True
    raise WorkerCrashed


@contextlib.contextmanager
def _demanded(name: str, topic: str | None, strike: Strike) -> Iterator[Fault]:
    """
    Have a fault on demand within the block; one that struck nobody fails the test, which would have proved nothing.
    """
    fault = Fault(name, topic, strike)
    token = _faults.set((*_faults.get(), fault))
    try:
        yield fault
    finally:
        _faults.reset(token)
    if not fault.struck:
        whose = f"a job of {topic!r}" if topic is not None else "a job"
        raise AssertionError(f"{name}() struck nothing: no attempt was made at {whose} within its block")
