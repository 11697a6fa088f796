"""
Runs handlers: plain ones on threads, ``async def`` ones in an event loop, at most so many at a time.

Owns the slots, and what an attempt's end means for its slot. What it means for the job is `policy`'s to say,
and the pump's or `effects`' to write.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from sqlalchemy_brooq import logs, policy, tracing
from sqlalchemy_brooq.claim import Claim, callbacks, chained
from sqlalchemy_brooq.errors import Interruption, RetryLater, Shutdown, Signal, find_in
from sqlalchemy_brooq.vocabulary import SUCCESS, Event, Outcome
from sqlalchemy_brooq.worker.aioloop import HandlerLoop
from sqlalchemy_brooq.worker.attempt import Attempt, InFlight, Stage
from sqlalchemy_brooq.worker.effects import Effects
from sqlalchemy_brooq.worker.journal import Journal, safe_traceback
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.results import Results
from sqlalchemy_brooq.worker.threads import Threads

STOPPING: Final = "the worker is stopping, and its grace period is over"

_handling: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("brooq_handling", default="")
"""The worker whose handler is running, in that handler's context."""

StartTask = Callable[[asyncio.AbstractEventLoop], asyncio.Task[None]]
Around = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class Ending(Enum):
    """
    Stands for the text of a result where there is none.
    """

    CUT_OFF = auto()
    """The handler didn't get as far as returning."""
    SETTLED = auto()
    """The outcome has been written, or was somebody else's to write."""


def in_handler_of(worker: str) -> bool:
    """
    Tell whether the caller is a handler that *worker* runs.
    """
    return _handling.get() == worker


class Executor:
    """
    Runs attempts in free slots, in the order in which they were handed over.

    Args:
        worker: This worker's identity.
        slots: How many handlers may run at a time.
        prefetch: How many more jobs may wait here under lease.
        loop: Where ``async def`` handlers run.
        effects: Settles what has effects of its own in the settling transaction.
        results: Turns return values into text.
        settle: Takes an attempt whose outcome is decided.
        in_flight: The table of attempts.
        journal: Is told of each end.
        around: The consumer's context manager around each handler.
    """

    def __init__(
        self,
        worker: str,
        slots: int,
        prefetch: int,
        loop: HandlerLoop,
        effects: Effects,
        results: Results,
        settle: Callable[[Attempt], None],
        in_flight: InFlight,
        journal: Journal,
        freed: Callable[[], None],
        around: Around | None = None,
    ) -> None:
        self._slots = slots
        self._capacity = slots + prefetch
        self._loop = loop
        self._effects = effects
        self._results = results
        self._settle = settle
        self._in_flight = in_flight
        self._journal = journal
        self._freed = freed
        self._around = around
        self._threads = Threads("handler")
        # What the host had set when it started the queue; each job gets a copy of its own.
        self._context = contextvars.copy_context()
        self._context.run(_handling.set, worker)
        self._change = threading.Condition()
        self._waiting: deque[Attempt] = deque()
        self._running: dict[Attempt, None] = {}
        self._hurried = False
        self._admitting = True
        self.broken = False
        """Whether the loop that ``async def`` handlers ran in is gone."""

    def start(self) -> None:
        """
        Start what runs handlers.
        """
        self._loop.start()

    @property
    def healthy(self) -> bool:
        """
        Whether ``async def`` handlers can still be run.
        """
        return not self.broken and self._loop.alive

    def free(self) -> int:
        """
        Return how many more jobs can be taken.
        """
        if not self.healthy:
            return 0
        with self._change:
            return self._capacity - len(self._running) - len(self._waiting)

    def running(self) -> list[Attempt]:
        """
        Return the attempts whose handlers run, those that were given up included.
        """
        with self._change:
            return list(self._running)

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """
        Take freshly claimed attempts.
        """
        with self._change:
            self._waiting.extend(attempts)
            ready = self._admit()
        self._begin(ready)

    def run_here(self, attempt: Attempt) -> StartTask | None:
        """
        Run a plain handler in the calling thread; how to start the task of an async one is returned instead.

        For a test. The attempt has begun, and takes no slot.
        """
        self._journal.began([attempt.claim])
        if attempt.handler.is_async:
            return partial(self._start_task, attempt)
        self._run_plain(attempt)
        return None

    def stop_admitting(self) -> None:
        """
        Begin nothing more: what is handed over from now on, or waits, is for `drop_waiting`.
        """
        with self._change:
            self._admitting = False

    def drop_waiting(self) -> list[Attempt]:
        """
        Hand back the attempts that wait for a slot.
        """
        with self._change:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def interrupt(self) -> None:
        """
        Tell every running handler that the worker shuts down.
        """
        for attempt in self.running():
            attempt.interrupt(Shutdown(STOPPING))

    def drain(self, grace: float, obey: float) -> None:
        """
        Let the running handlers finish within *grace* seconds; then interrupt those that go on, and wait *obey* more.
        """
        with self._change:
            self._change.wait_for(lambda: self._hurried or not self._running, grace)
        self.interrupt()
        with self._change:
            self._change.wait_for(lambda: not self._running, obey)

    def hurry(self) -> None:
        """
        End the grace period of a `drain` that is under way.
        """
        with self._change:
            self._hurried = True
            self._change.notify_all()

    def close(self, timeout: float) -> bool:
        """
        End the threads and the loop; False if a handler keeps one of them.
        """
        threads = self._threads.close(timeout)
        return self._loop.close(timeout) and threads

    def _admit(self) -> list[Attempt]:
        """
        Move waiting attempts into free slots, and return them; those that were concluded meanwhile fall out.
        """
        ready: list[Attempt] = []
        while self._admitting and self._waiting and len(self._running) < self._slots:
            attempt = self._waiting.popleft()
            if attempt.start():
                self._running[attempt] = None
                ready.append(attempt)
        return ready

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        """
        Run what has been admitted.
        """
        if not attempts:
            return
        self._journal.began([attempt.claim for attempt in attempts])
        in_loop = [attempt for attempt in attempts if attempt.handler.is_async]
        on_threads = attempts if not in_loop else [attempt for attempt in attempts if not attempt.handler.is_async]
        if in_loop:
            try:
                self._loop.call(partial(self._start_tasks, in_loop))
            except RuntimeError as error:
                self._loop_is_gone(in_loop, error)
        for place, attempt in enumerate(on_threads):
            try:
                self._threads.submit(partial(self._run_plain, attempt))
            except RuntimeError:  # no thread can be had
                self._give_back(on_threads[place:], is_async=False)
                raise

    def _loop_is_gone(self, attempts: Sequence[Attempt], error: RuntimeError) -> None:
        """
        Give back what was to run in a loop that ended under us, and take no more: only a restart mends that.
        """
        if not self.broken:
            log.error("the event loop that the handlers ran in is gone (%s): nothing more is claimed", error)
        self.broken = True
        self._give_back(attempts, is_async=True)

    def _give_back(self, attempts: Sequence[Attempt], *, is_async: bool) -> None:
        """
        Requeue what was admitted and can't be begun, and whatever of its kind takes its slots.
        """
        pending = deque(attempts)
        # One after the other: what takes a slot is lost in turn, and thousands may wait for one.
        while pending:
            attempt = pending.popleft()
            if attempt.conclude():
                attempt.outcome = Outcome(Event.REQUEUED, refund=True)
                self._settle(attempt)
            following = self._release(attempt)
            alike = [one for one in following if one.handler.is_async is is_async]
            self._journal.began([one.claim for one in alike])
            self._begin([one for one in following if one.handler.is_async is not is_async])
            pending.extend(alike)

    def _release(self, attempt: Attempt) -> list[Attempt]:
        """
        Free the slot of *attempt*, and return what was admitted to it.
        """
        self._journal.attempted(attempt.claim, time.monotonic() - attempt.started_at)
        self._make_sure_of(attempt)
        with self._change:
            self._running.pop(attempt, None)
            ready = self._admit() if self._waiting else []
            idle = not self._running
            if idle:
                self._change.notify_all()
        if idle or attempt.stage is Stage.OVER:  # no outcome of it may wake the pump any more
            self._freed()
        return ready

    def _make_sure_of(self, attempt: Attempt) -> None:
        """
        Record a failure where a handler has ended and nothing was decided: its lease would be renewed for good.
        """
        if attempt.given_up or attempt.stage is Stage.OVER or attempt.outcome is not None:
            return  # whoever gave it up says what becomes of it
        attempt.conclude()
        claim, error = attempt.claim, RuntimeError("the engine failed on how the handler ended; its log says more")
        attempt.outcome = policy.failure(claim.attempt, claim.requeues, attempt.handler.options, error)
        self._settle(attempt)

    # -- plain handlers, on threads

    def _run_plain(self, attempt: Attempt) -> None:
        """
        Run *attempt*, and on this thread whatever takes its slot: handing it to another one costs more than a job.
        """
        following: Attempt | None = attempt
        while following is not None:
            attempt = following
            try:
                self._context.copy().run(self._attempt_plain, attempt)
            except BaseException:
                self._begin(self._release(attempt))
                raise
            following = self._follow(self._release(attempt))

    def _follow(self, ready: list[Attempt]) -> Attempt | None:
        """
        Begin *ready* elsewhere, but for a first plain one, which is returned.
        """
        if not ready:
            return None
        if ready[0].handler.is_async:
            self._begin(ready)
            return None
        self._begin(ready[1:])
        self._journal.began([ready[0].claim])
        return ready[0]

    def _attempt_plain(self, attempt: Attempt) -> None:
        _enter(attempt)
        text: str | Ending | None = Ending.CUT_OFF
        try:
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
            self._effects.transactional(attempt, partial(_call, attempt))
            return Ending.SETTLED
        text = self._results.text(attempt, _call(attempt))
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

    # -- async def handlers, in the loop

    def _start_tasks(self, attempts: Sequence[Attempt], loop: asyncio.AbstractEventLoop) -> None:
        """
        Start a task for each of *attempts*, in the loop's thread.
        """
        for attempt in attempts:
            self._start_task(attempt, loop)

    def _start_task(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        attempt.task = task = loop.create_task(self._run_async(attempt), context=self._context.copy())
        attempt.stop = _stop_task
        if (cause := attempt.claim.cause) is not None:  # interrupted before there was a task
            _stop_task(attempt, cause)
        return task

    async def _run_async(self, attempt: Attempt) -> None:
        _enter(attempt)
        text: str | Ending | None = Ending.CUT_OFF
        try:
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
            self._begin(self._release(attempt))

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
            attempt.outcome = SUCCESS if text is None else Outcome(Event.DONE, result=text)
            self._settle(attempt)

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
            # Before anything is logged: a consumer's log handler may raise.
            self._decided(attempt, outcome)
        elif attempt.given_up or policy.ended_by_interruption(error):
            return  # otherwise the surroundings raised, after the outcome was written
        if trace is not None:
            self._journal.raised(claim, trace)
        later = find_in(error, RetryLater)
        if later is not None and later.delay > options.backoff_max:
            self._journal.cut(claim, later.delay, options.backoff_max)

    def _decided(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if outcome is None:
            self._in_flight.remove([attempt])
            self._journal.lost(attempt.claim)
        else:
            attempt.outcome = outcome
            self._settle(attempt)


def _enter(attempt: Attempt) -> None:
    """
    Let the log lines and the spans of this context, which is the attempt's own, be about its job.
    """
    logs.enter(attempt.claim)
    if tracing.active is not None:
        attempt.span = tracing.active.begin(attempt.claim)


def _leave(attempt: Attempt) -> None:
    if attempt.span is not None:
        attempt.span.end(attempt.outcome)


def _stop_task(attempt: Attempt, _: Interruption) -> None:
    """
    Cancel the task that runs an attempt.
    """
    task = attempt.task
    if task is None:
        return

    def cancel() -> None:
        # In the loop's thread, so that it can't hit the engine's own steps after the handler's end.
        if attempt.stage is Stage.RUNNING or attempt.given_up:
            task.cancel()

    with contextlib.suppress(RuntimeError):  # the loop was closed under us
        task.get_loop().call_soon_threadsafe(cancel)


def has_effects(claim: Claim) -> bool:
    """
    Tell whether *claim* has more to write than its outcome.
    """
    return bool(chained(claim) or callbacks(claim))


@contextlib.asynccontextmanager
async def _as_async(manager: AbstractContextManager[Any]) -> Any:
    with manager:
        yield


def _call(attempt: Attempt, *arguments: Any) -> Any:
    """
    Call a plain handler. Only its own code is interrupted, not the engine's steps before and after it.
    """
    if attempt.handler.options.interrupt != "raise":
        return attempt.handler.function(attempt.claim, *arguments)
    with _interruptible(attempt):
        return attempt.handler.function(attempt.claim, *arguments)


@contextlib.contextmanager
def _interruptible(attempt: Attempt) -> Iterator[None]:
    """
    Let an interruption raise its cause in this thread, but never beyond the handler.
    """
    door = _RaisingDoor(threading.get_ident())
    attempt.stop = door.throw
    try:
        attempt.claim.check()  # it may have been interrupted while the door was not there yet
        yield
    finally:
        attempt.stop = None
        try:
            door.close()
        except Interruption:  # thrown a moment ago, and delivered here
            door.close()
            raise


class _RaisingDoor:
    """
    Throws an interruption into a thread, as long as it is open.
    """

    def __init__(self, thread: int) -> None:
        self._thread = ctypes.c_ulong(thread)
        self._lock = threading.Lock()
        self._open = True

    def throw(self, _attempt: Attempt, cause: Interruption) -> None:
        """
        Let the thread raise an exception of the cause's kind; it does so between two steps of Python code.
        """
        with self._lock:
            if self._open:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(type(cause)))

    def close(self) -> None:
        """
        Throw nothing more, and take back what was not delivered yet.
        """
        with self._lock:
            self._open = False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)
