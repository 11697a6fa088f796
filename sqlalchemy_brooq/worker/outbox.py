"""
Outcomes on their way to the database: handlers put in, the pumps take out.

Knows no SQL; what an outcome says is not looked at, but for its size.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from sqlalchemy_brooq.worker.attempt import Attempt, outcome_of
from sqlalchemy_brooq.worker.port import BATCH

BATCH_SIZE: Final = 2**23
"""Characters of results after which a batch is closed."""


class Outbox:
    """
    A queue with a part for later.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._attempts: deque[Attempt] = deque()
        self._later: list[tuple[float, Attempt]] = []
        self.ring: Callable[[], None] = lambda: None
        """Lets a pump know that there is something."""

    def __len__(self) -> int:
        return len(self._attempts)

    def put(self, attempt: Attempt) -> None:
        """
        Take an attempt whose outcome is decided.
        """
        self._attempts.append(attempt)
        self.ring()

    def put_back(self, attempts: Iterable[Attempt], *, pause: float = 0.0) -> None:
        """
        Take attempts whose outcomes could not be written, to be tried again.
        """
        due = time.monotonic() + pause
        with self._guard:
            self._later.extend((due, attempt) for attempt in attempts)

    def take(self, now: float) -> list[Attempt]:
        """
        Hand out up to a batch.
        """
        with self._guard:
            if self._later:
                due = [attempt for moment, attempt in self._later if moment <= now]
                self._later = [(moment, attempt) for moment, attempt in self._later if moment > now]
                self._attempts.extendleft(reversed(due))
            batch: list[Attempt] = []
            size = 0
            while self._attempts and len(batch) < BATCH and size < BATCH_SIZE:
                attempt = self._attempts.popleft()
                batch.append(attempt)
                size += len(outcome_of(attempt).result or "")
            return batch

    def pause(self, now: float) -> float | None:
        """
        Return the seconds until something can be taken, or ``None``.
        """
        if self._attempts:
            return 0.0
        with self._guard:
            return max(0.0, min(moment for moment, _ in self._later) - now) if self._later else None
