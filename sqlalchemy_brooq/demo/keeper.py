"""
Runs one PostgreSQL for the process that asked for it, and ends when that process ends.

Owns the processes of a server: starts them as the right user, passes the stop signals on, reaps what a crash leaves
behind, and clears up when its parent is gone. A program of its own (``python -I -S keeper.py ORDERS``), because code
between fork and exec is safe only where there is one thread, and because the kernel's signal for a parent's death
follows the thread that forked: a server started by a short-lived thread would end with it.

Must import the standard library only, and knows of PostgreSQL no more than what its signals mean.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

#: What the keeper is sent → what it sends on.
STOP_SIGNALS: Final[Mapping[int, int]] = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGQUIT: signal.SIGQUIT,
    signal.SIGUSR1: signal.SIGKILL,
}
#: How often to look whether the parent still lives, in seconds.
LOOK: Final = 0.2
#: How long the other processes of a server may take to notice that the postmaster is dead, in seconds.
GRACE: Final = 1.0
#: How long a fast shutdown may take once the parent is gone, in seconds.
PATIENCE: Final = 10.0

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class Keeper:
    """
    Runs commands one after the other, each until it ends, for as long as *parent* lives.

    Args:
        parent: The process to serve.
        folders: What to remove when the parent is gone.
        user: The user to run them as, or ``None`` for the keeper's own.
        group: That user's group.
    """

    def __init__(self, parent: int, folders: Sequence[str], user: int | None, group: int | None) -> None:
        self._parent = parent
        self._folders = folders
        self._account: dict[str, Any] = {} if user is None else {"user": user, "group": group, "extra_groups": []}
        self._child: int | None = None
        self._asked: int | None = None
        self._orphaned_at: float | None = None
        self._reaping_since: float | None = None
        self._prctl = _prctl()

    def run(self, commands: Sequence[Sequence[str]]) -> int:
        """
        Run *commands* until one fails or a stop is asked for, and return the last one's exit code.
        """
        self._listen()
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        code = 0
        for command in commands:
            if code or self._asked is not None:
                break
            code = self._run_one(command)
        self._reap()
        if os.getppid() != self._parent:
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
        return code if code >= 0 else 128 - code

    def _run_one(self, command: Sequence[str]) -> int:
        child = subprocess.Popen(  # noqa: S603 - the parent's own command
            command,
            # There is one thread here. The signal is asked for after the change of user, which would clear it.
            preexec_fn=self._end_with_keeper,  # noqa: PLW1509
            **self._account,
        )
        self._child = child.pid
        if self._asked is not None:
            self._signal(self._asked)
        code = child.wait()
        self._child = None
        return code

    def _reap(self) -> None:
        """
        Wait for the children of a killed postmaster, ours now: until the last ends its data can't be opened again.
        """
        self._reaping_since = time.monotonic()
        with suppress(ChildProcessError):
            while True:
                os.wait()

    def _end_with_keeper(self) -> None:
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGINT)

    def _listen(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGALRM, self._on_look)
        signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)
        # The mask is inherited from the thread that started us, which may block what we listen for.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._signal(STOP_SIGNALS[number])

    def _on_look(self, _number: int, _frame: FrameType | None) -> None:
        if self._reaping_since is not None:
            if time.monotonic() - self._reaping_since > GRACE:
                _kill_children()
        elif os.getppid() == self._parent:
            return
        elif self._orphaned_at is None:
            self._orphaned_at = time.monotonic()
            self._signal(signal.SIGINT)
        elif time.monotonic() - self._orphaned_at > PATIENCE:
            self._signal(signal.SIGQUIT)

    def _signal(self, number: int) -> None:
        self._asked = number
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)


def _kill_children() -> None:
    """
    Kill what outlived the postmaster and doesn't notice: a backend that computes, or one that waits for another.
    """
    with suppress(FileNotFoundError):  # Linux tells; elsewhere such children aren't ours
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _prctl() -> Callable[[int, int], object]:
    """
    Return Linux's ``prctl``; elsewhere something that does nothing.
    """
    if sys.platform != "linux":
        return lambda _option, _value: None
    prctl: Callable[[int, int], object] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    sys.exit(Keeper(orders["parent"], orders["folders"], orders["user"], orders["group"]).run(orders["commands"]))
