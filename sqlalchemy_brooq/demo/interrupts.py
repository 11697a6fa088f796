"""
Ctrl-C and its like: the first one ends the demo in good order, and none disturbs its clearing up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """
    A signal asked the demo to stop. A ``KeyboardInterrupt``, so that drivers break off what they wait for.
    """


class Interrupts:
    """
    While it is entered, the first of these signals raises `Stopped` in the main thread; the old handlers come back.

    In another thread it does nothing: Python takes no signals there.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal that came."""
        self._is_deferred = False
        self._is_over = False
        self._old: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Under nohup, a terminal that goes away is meant to be of no concern.
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)

    def check(self) -> None:
        """
        Raise `Stopped` if a signal came: an exception that a signal raises may get lost where it hits.
        """
        if self.number is not None:
            self._is_over = True
            raise Stopped

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """
        Raise at the end of the block for a signal that came in it; a second one doesn't wait.

        For starting a process: an exception between its birth and the note of it would leave it behind.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        self.check()

    @contextmanager
    def over_afterwards(self) -> Iterator[None]:
        """
        From the end of the block on, only take note of signals: what follows is the clearing up.
        """
        try:
            yield
        finally:
            self._is_over = True

    def _note(self, number: int, _frame: FrameType | None) -> None:
        is_first, self.number = self.number is None, self.number or number
        if not self._is_over and not (self._is_deferred and is_first):
            self.check()
