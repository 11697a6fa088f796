"""
SIGINT and SIGTERM while a worker runs in the main thread; the old handlers come back afterwards.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import FrameType
from typing import Any, Final, Self

from sqlalchemy_brooq.errors import LifecycleError

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """
    Counts the signals that ask the process to stop.

    A pipe carries them to whoever waits: a lock could be held by the very code that the signal interrupted.

    Args:
        once: Any number of signals counts as one, and only `hurry` as a second. For a worker with a supervisor: what
            is sent to both of them, by systemd say, it would otherwise get twice.

    Raises:
        LifecycleError: Entered outside the main thread, where Python takes no signals.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.count = 0
        self._once = once
        self._old: dict[signal.Signals, Any] = {}
        self._ends: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise LifecycleError("run() takes signals, and so must be called in the main thread; use start() elsewhere")
        self._ends = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)
        for number in STOPPING:
            self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, old in self._old.items():
            # None stands for a handler that wasn't installed from Python, and can't be put back from it.
            signal.signal(number, old if old is not None else signal.SIG_DFL)
        for end in self._ends or ():
            os.close(end)
        self._ends = None

    def wait(self, timeout: float) -> bool:
        """
        Wait for a signal, at most *timeout* seconds; True if any has come since the start.
        """
        if self._ends is not None:
            ready, _, _ = select.select([self._ends[0]], [], [], timeout)
            if ready:
                os.read(self._ends[0], 64)
        return self.count > 0

    def hurry(self) -> None:
        """
        Count as a second signal; callable from any thread.
        """
        self._count(2)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count(1 if self._once else self.count + 1)

    def _count(self, count: int) -> None:
        self.count = max(self.count, count)
        if self._ends is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._ends[1], b"!")
