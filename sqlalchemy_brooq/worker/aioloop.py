"""
The event loop that ``async def`` handlers run in: one of its own thread, or the consumer's running one.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from sqlalchemy_brooq.worker.log import log

CLEAN_UP: Final = 1.0
"""Seconds that canceled tasks have to clean up."""

T = TypeVar("T")


class HandlerLoop:
    """
    Calls into an event loop from any thread.

    Args:
        loop: The consumer's running loop; ``None`` makes one, on a thread of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """
        Whether the loop runs.
        """
        if self._thread is not None:
            return self._thread.is_alive()
        return self._loop is None or self._loop.is_running()

    def start(self) -> None:
        """
        Start the loop's thread, unless the loop is the consumer's.
        """
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_run, args=[loop], name="brooq-loop", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads can be had
                loop.close()
                raise
            self._loop, self._thread = loop, thread

    def call(self, start: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """
        Call *start* in the loop, with the loop.

        Raises:
            RuntimeError: The loop is closed.
        """
        if self._loop is None:
            raise RuntimeError("the handlers' loop was not started")
        self._loop.call_soon_threadsafe(start, self._loop)

    def close(self, timeout: float) -> bool:
        """
        End the loop and its thread, unless it is the consumer's; False if a task blocks it.
        """
        if self._thread is None or self._loop is None:
            return True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while not _ran_to_its_stop(loop):
        pass
    while not _cancel_leftovers(loop):
        # Destroyed while it is pending, a task that swallows everything could keep the interpreter from ending:
        # let it go on, on this daemon thread.
        loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _ran_to_its_stop(loop: asyncio.AbstractEventLoop) -> bool:
    """
    Run *loop* until it is stopped; False if something in it raised what asyncio lets through, such as SystemExit.
    """
    try:
        loop.run_forever()
    except BaseException:  # noqa: BLE001 - a thread's top: a task of a handler's own raised it
        log.exception("a task in the handlers' loop raised what would end the loop; it goes on")
        return False
    return True


def _cancel_leftovers(loop: asyncio.AbstractEventLoop) -> bool:
    """
    Give tasks that are left a last chance to clean up, as `asyncio.run` does; False if some ignore it.
    """
    leftovers = asyncio.all_tasks(loop)
    for task in leftovers:
        task.cancel()
    if leftovers:
        loop.run_until_complete(asyncio.wait(leftovers, timeout=CLEAN_UP))
    return all(task.done() for task in leftovers)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """
    Return the event loop that the caller runs in, if there is one.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def fulfil(done: Future[T], work: Callable[[], T]) -> None:
    """
    Run *work*, and put what comes of it into *done*.
    """
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        done.set_exception(error)


async def in_thread(work: Callable[[], T]) -> T:
    """
    Run *work* on a thread of its own, in a copy of the caller's context, without blocking the loop.

    ``asyncio.to_thread`` would leave a thread behind for as long as the loop lives.
    """
    done: Future[T] = Future()
    context = contextvars.copy_context()

    thread = threading.Thread(target=context.run, args=[fulfil, done, work], name="brooq-aside", daemon=True)
    thread.start()
    try:
        # The work can't be stopped half-way: a canceled caller leaves it to its end.
        return await asyncio.shield(asyncio.wrap_future(done))
    finally:
        if done.done():
            thread.join()  # it has nothing left to do
