"""
The watchdog: ends attempts whose time is up, and notices handlers that ignore it.

Owns every decision by this process's monotonic clock. It needs no database, so that a frozen one can't stop it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy_brooq.config import ResolvedOptions
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import AttemptTimeout, MaxExecutionExceeded
from sqlalchemy_brooq.worker.attempt import Attempt, Stage
from sqlalchemy_brooq.worker.connection import PrivateConnection
from sqlalchemy_brooq.worker.desk import Desk

TICK: Final = 0.05
"""Seconds between looks while anything runs: how late a timeout may come."""
IDLE: Final = 0.5
"""Seconds between looks while nothing runs: only connections are watched."""


class Watchdog:
    """
    Looks at every running attempt and every private connection, again and again.

    Args:
        desk: Where is written down what becomes of attempts.
        running: Returns the attempts whose handlers run, those that were given up included.
        connections: The engine's own connections, whose calls have deadlines.
        grace: After so long an interrupted handler counts as hung.
        lease: After so long a settling transaction of its own counts as frozen.
    """

    def __init__(
        self,
        desk: Desk,
        running: Callable[[], Sequence[Attempt]],
        connections: Sequence[PrivateConnection],
        grace: timedelta,
        lease: timedelta,
    ) -> None:
        self._desk = desk
        self._running = running
        self._connections = connections
        self._grace = grace.total_seconds()
        self._lease = lease.total_seconds()

    def round(self) -> float:
        """
        Look once, and return the seconds until the next look.
        """
        now = time.monotonic()
        for connection in self._connections:
            connection.expire(now)
        for attempt in self._desk.in_flight.all():
            if now >= attempt.lease_end and attempt.stage is not Stage.SETTLING:
                self._desk.lose(attempt)
        running = self._running()
        for attempt in running:
            self._look_at(attempt, now)
        return TICK if running or len(self._desk.in_flight) else IDLE

    def _look_at(self, attempt: Attempt, now: float) -> None:
        if attempt.stage is Stage.SETTLING and attempt.break_off is not None:
            self._look_at_settling(attempt, now)
            return
        options = attempt.handler.options
        ran = now - attempt.started_at
        if attempt.interrupted_at is None and ran >= options.attempt_timeout.total_seconds():
            cause = timed_out(options)
            attempt.interrupt(cause)
            self._desk.journal.timed_out(attempt.claim, cause)
        if ran >= options.max_execution_timeout.total_seconds():
            self._end(attempt)
        if attempt.interrupted_at is not None and not attempt.hung:
            ignored = now - attempt.interrupted_at
            if ignored >= self._grace:
                attempt.hung = True
                self._desk.journal.hung(attempt.claim, ignored)

    def _look_at_settling(self, attempt: Attempt, now: float) -> None:
        """
        Break off a settling transaction whose server has not answered for a whole lease.
        """
        if now >= attempt.settling_since + self._lease and attempt.break_off is not None:
            attempt.break_off()
            attempt.break_off = None

    def _end(self, attempt: Attempt) -> None:
        """
        Write the attempt off as failed, without waiting for its handler.
        """
        limit = format_duration(attempt.handler.options.max_execution_timeout)
        cause = MaxExecutionExceeded(f"the attempt went on to its max_execution_timeout of {limit}")
        if attempt.give_up(cause):
            self._desk.fail(attempt, cause)


def timed_out(options: ResolvedOptions) -> AttemptTimeout:
    """
    Return what interrupts an attempt that has run for its ``attempt_timeout``.
    """
    return AttemptTimeout(f"the attempt ran for its attempt_timeout of {format_duration(options.attempt_timeout)}")
