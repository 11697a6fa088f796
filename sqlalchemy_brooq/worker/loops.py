"""
A background loop that survives its rounds: every periodic thread of the engine is one.

Owns threads, waiting, backoff after a failed round, and what health says about it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.vocabulary import Notice
from sqlalchemy_brooq.worker.connection import backing_off
from sqlalchemy_brooq.worker.journal import safe_traceback
from sqlalchemy_brooq.worker.log import log

PATIENCE: Final = 3
"""Failed rounds in a row after which a loop is not healthy."""
SLACK: Final = 5.0
"""Seconds that a round may come late before a loop is not healthy."""


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """
    What is known of one background loop.
    """

    name: str
    alive: bool
    """Whether its thread runs."""
    failures: int
    """How many rounds have failed in a row."""
    age: float
    """Seconds since the last round that succeeded."""
    healthy: bool
    """False when it has failed three times in a row, is late, or has ended."""


class Loop:
    """
    Runs *body* again and again on a thread of its own, until it is stopped.

    Args:
        name: What it is called in the log, in health and among the threads.
        body: One round; returns the seconds until the next one.
        period: The longest pause that a healthy loop makes, in seconds.
        recover: Called after a failed round, to drop what may be broken.
    """

    def __init__(
        self, name: str, body: Callable[[], float], *, period: float, recover: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self._body = body
        self._period = period
        self._recover = recover
        self._woken = threading.Event()
        self._halt = threading.Event()
        self._failures = 0
        self._pauses = backing_off()
        self._succeeded_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"brooq-{name}", daemon=True)

    def start(self) -> None:
        """
        Start the thread.
        """
        self._succeeded_at = time.monotonic()
        self._thread.start()

    def wake(self) -> None:
        """
        Let the next round begin now.
        """
        if not self._woken.is_set():  # which costs less than to set it, and is asked once a job
            self._woken.set()

    def stop(self) -> None:
        """
        Ask the loop to end after the round that it is in.
        """
        self._halt.set()
        self._woken.set()

    def join(self, timeout: float) -> bool:
        """
        Wait for the thread to end; True if it has, or was never started.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def health(self) -> LoopHealth:
        """
        Tell how the loop is.
        """
        age = time.monotonic() - self._succeeded_at
        alive = self._thread.is_alive()
        healthy = alive and self._failures < PATIENCE and age < self._period + SLACK
        return LoopHealth(self.name, alive, self._failures, age, healthy)

    def _run(self) -> None:
        while not self._halt.is_set():
            # Cleared before the round: a wake-up during it must not be lost.
            self._woken.clear()
            try:
                pause = self._body()
            except Exception as error:  # noqa: BLE001 - a thread's top: whatever it is, the loop goes on
                if self._halt.is_set():
                    break  # its connection was broken off, to wake it
                # A wake-up doesn't end this pause: it must not turn an outage into a tight loop.
                self._halt.wait(self._failed(error))
                continue
            self._succeeded()
            if pause > 0 and not self._halt.is_set():
                self._woken.wait(pause)

    def _succeeded(self) -> None:
        if self._failures:
            extra = {"event": Notice.LOOP_RECOVERED.value, "loop": self.name}
            log.info("%s: works again after %d failed rounds", self.name, self._failures, extra=extra)
            self._failures = 0
        self._succeeded_at = time.monotonic()

    def _failed(self, error: Exception) -> float:
        """
        Log a failed round, clean up after it, and return the pause before the next.
        """
        if not self._failures:
            self._pauses = backing_off()
        self._failures += 1
        pause = next(self._pauses)
        # Of a database error one line will do.
        is_database_error = hasattr(error, "orig") or hasattr(error, "diag")
        text = error_text(error).partition("\n")[0] + ("" if is_database_error else f"\n{safe_traceback(error)}")
        extra = {"event": Notice.LOOP_FAILED.value, "loop": self.name}
        log.error("%s: round failed, next try in %.1f s: %s", self.name, pause, text, extra=extra)
        try:
            self._recover()
        except Exception as worse:  # noqa: BLE001 - the loop goes on all the same
            trace = safe_traceback(worse)
            log.error("%s: could not clean up after a failed round\n%s", self.name, trace, extra=extra)
        return pause
