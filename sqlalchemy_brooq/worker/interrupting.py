"""
How an interruption reaches a handler that runs: a task is canceled, a thread has its cause raised if it asked for that.

Only the handler's own code is interrupted, never the engine's steps before and after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy_brooq.errors import Interruption
from sqlalchemy_brooq.worker.attempt import Attempt, Stage


def call(attempt: Attempt, *arguments: Any) -> Any:
    """
    Call a plain handler, which an interruption may end.
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
    door = RaisingDoor(threading.get_ident())
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


class RaisingDoor:
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


def stop_task(attempt: Attempt, _: Interruption) -> None:
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
