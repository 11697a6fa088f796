"""
The heartbeat: renews all leases of this process, and tells handlers whose lease is lost.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from sqlalchemy_brooq.claim import renewed
from sqlalchemy_brooq.worker.attempt import Attempt, Stage, by_job
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.port import HeartbeatPort

ROUNDS: Final = 3
"""Renewals in the time of one lease: two may fail before it is lost."""
SOON: Final = 12
"""The same, for rows that were skipped because somebody else held them."""


class Heartbeat:
    """
    A round renews every lease in one statement; one that is woken before its time only looks which ones are lost.

    A row that somebody else holds is skipped by the statement, and asked for again soon.
    """

    def __init__(self, port: HeartbeatPort, desk: Desk, lease: timedelta) -> None:
        self._port = port
        self._desk = desk
        self._lease = lease.total_seconds()
        self._due = 0.0

    def round(self) -> float:
        """
        Renew, and return the seconds until the next round.
        """
        attempts = sorted(self._desk.in_flight.all(), key=by_job)
        left = self._due - time.monotonic()
        if left > 0:
            # Woken by a cancel: find out whose it was. Renewing all the others each time would be a storm of writes.
            if attempts:
                self._look_at(attempts)
            return left
        skipped = bool(attempts) and self._renew(attempts)
        pause = self._lease / (SOON if skipped else ROUNDS)
        self._due = time.monotonic() + pause
        return pause

    def _renew(self, attempts: list[Attempt]) -> bool:
        """
        Renew what can be renewed; True if rows were skipped that are still ours.
        """
        # From before the statement: the database's lease then ends later than ours, never earlier.
        end = time.monotonic() + self._lease
        untouched: list[Attempt] = []
        for attempt, until in zip(attempts, self._port.renew([one.claim for one in attempts]), strict=True):
            if until is None:
                untouched.append(attempt)
            else:
                attempt.lease_end = end
                renewed(attempt.claim, until)
        return bool(untouched) and self._look_at(untouched)

    def _look_at(self, attempts: list[Attempt]) -> bool:
        """
        Tell the handlers of rows that are no longer ours; True if others are merely locked.
        """
        answer = self._port.held([attempt.claim for attempt in attempts])
        for attempt, is_held in zip(attempts, answer, strict=True):
            # One that is being settled gave its row up to its own outcome, as like as not: the pump will know.
            if not is_held and attempt.stage in (Stage.WAITING, Stage.RUNNING):
                self._desk.lose(attempt)
        return any(answer)
