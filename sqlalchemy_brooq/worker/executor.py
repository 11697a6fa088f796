"""
Runs handlers: plain ones on threads, ``async def`` ones in an event loop, at most so many at a time.

Owns the slots: who is begun, who waits, and what an attempt's end means for its slot. How one is run is `running`'s.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from sqlalchemy_brooq.errors import Shutdown
from sqlalchemy_brooq.worker.aioloop import HandlerLoop
from sqlalchemy_brooq.worker.attempt import Attempt, Stage
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.interrupting import stop_task
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.running import Runner
from sqlalchemy_brooq.worker.threads import Threads

STOPPING: Final = "the worker is stopping, and its grace period is over"

_handling: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("brooq_handling", default="")
"""The worker whose handler is running, in that handler's context."""

StartTask = Callable[[asyncio.AbstractEventLoop], asyncio.Task[None]]


def in_handler_of(worker: str) -> bool:
    """
    Tell whether the caller is a handler that *worker* runs.
    """
    return _handling.get() == worker


class Executor:
    """
    Runs attempts in free slots, in the order in which they were handed over.

    Args:
        desk: Where is written down what becomes of attempts.
        runner: Runs one attempt.
        loop: Where ``async def`` handlers run.
        slots: How many handlers may run at a time.
        prefetch: How many more jobs may wait here under lease.
    """

    def __init__(self, desk: Desk, runner: Runner, loop: HandlerLoop, slots: int, prefetch: int = 0) -> None:
        self._desk = desk
        self._journal = desk.journal
        self._runner = runner
        self._loop = loop
        self._slots = slots
        self._capacity = slots + prefetch
        self._threads = Threads("handler")
        # What the host had set when it started the queue; each job gets a copy of its own.
        self._context = contextvars.copy_context()
        self._context.run(_handling.set, desk.worker)
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
            self._desk.give_back(attempt)
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
            self._desk.outbox.ring()
        return ready

    def _make_sure_of(self, attempt: Attempt) -> None:
        """
        Record a failure where a handler has ended and nothing was decided: its lease would be renewed for good.
        """
        if attempt.given_up or attempt.stage is Stage.OVER or attempt.outcome is not None:
            return  # whoever gave it up says what becomes of it
        attempt.conclude()
        self._desk.fail(attempt, RuntimeError("the engine failed on how the handler ended; its log says more"))

    # -- plain handlers, on threads

    def _run_plain(self, attempt: Attempt) -> None:
        """
        Run *attempt*, and on this thread whatever takes its slot: handing it to another one costs more than a job.
        """
        following: Attempt | None = attempt
        while following is not None:
            attempt = following
            try:
                self._context.copy().run(self._runner.called, attempt)
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

    # -- async def handlers, in the loop

    def _start_tasks(self, attempts: Sequence[Attempt], loop: asyncio.AbstractEventLoop) -> None:
        """
        Start a task for each of *attempts*, in the loop's thread.
        """
        for attempt in attempts:
            self._start_task(attempt, loop)

    def _start_task(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        attempt.task = task = loop.create_task(self._runner.awaited(attempt, self._ended), context=self._context.copy())
        attempt.stop = stop_task
        if (cause := attempt.claim.cause) is not None:  # interrupted before there was a task
            stop_task(attempt, cause)
        return task

    def _ended(self, attempt: Attempt) -> None:
        self._begin(self._release(attempt))
