"""
Lets the pumps of one worker overlap: which one is woken, and whether two may be at work.

While one waits for the server, another hands jobs out, as long as there is enough for both: two halves of a batch
cost more than the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy_brooq.worker.demand import Demand
from sqlalchemy_brooq.worker.outbox import Outbox


class Traffic:
    """
    Counts the pumps at work.
    """

    def __init__(self, outbox: Outbox, demand: Demand) -> None:
        self._outbox = outbox
        self._demand = demand
        self._guard = threading.Lock()
        self._at_work: set[int] = set()
        self.wakes: list[Callable[[], None]] = []
        """How to wake each pump."""

    def ring(self) -> None:
        """
        Wake a pump that has something to do; one at work looks again by itself before it rests.

        Called once a job, so it takes no lock.
        """
        at_work = self._at_work
        if not at_work:
            self.wakes[0]()
        elif len(at_work) < len(self.wakes) and len(self._outbox) >= self._demand.quarter:
            self._wake_another()

    def enter(self, pump: int) -> bool:
        """
        Begin a round; False where another is under way and has all the work that there is.
        """
        with self._guard:
            if self._at_work and not self._is_enough_for_two():
                return False
            self._at_work.add(pump)
            return True

    def leave(self, pump: int) -> None:
        """
        End a round. What comes from now on rings a pump; what came before, this one must look for.
        """
        with self._guard:
            self._at_work.discard(pump)

    def _is_enough_for_two(self) -> bool:
        return len(self._outbox) >= self._demand.quarter or self._demand.presses()

    def _wake_another(self) -> None:
        for pump, wake in enumerate(self.wakes):
            if pump not in self._at_work:
                wake()
                return
