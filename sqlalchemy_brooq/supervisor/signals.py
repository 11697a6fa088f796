"""
The signals of a supervisor, as something to wait for beside its channels.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Final

HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Signals:
    """
    Takes the signals from when it is built, in the main thread, and hands them over in their order.

    When the terminal goes away that the program was started from, SIGHUP says so, and not that somebody wants a
    rolling restart. It then counts as SIGTERM, or as nothing under ``nohup``.
    """

    def __init__(self) -> None:
        self._hangup_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._had_terminal = _has_terminal()
        self._wire, writing = socket.socketpair()
        self._writing = writing
        for end in (self._wire, writing):
            end.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in HEARD:
            signal.signal(number, _nothing)  # what is to be done, the wire carries

    def fileno(self) -> int:
        """
        Return the file descriptor, to be waited for.
        """
        return self._wire.fileno()

    def taken(self) -> list[int]:
        """
        Return the signals that have come since the last call.
        """
        numbers: list[int] = []
        with suppress(BlockingIOError):
            numbers.extend(self._wire.recv(4096))
        return [meant for number in numbers if (meant := self._meant(number)) is not None]

    def _meant(self, number: int) -> int | None:
        if number == signal.SIGHUP and self._had_terminal and not _has_terminal():
            return None if self._hangup_ignored else signal.SIGTERM
        return number


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
