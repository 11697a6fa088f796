"""
Answers that serve several who ask the same: many may look at one dashboard.

Owns for how long, and how many are kept. Knows nothing of jobs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from sqlalchemy_brooq.errors import BrooqError

T = TypeVar("T")

FRESH: Final = timedelta(seconds=1)
"""How long an answer about the whole table serves others who ask the same."""
MOST_KEPT: Final = 200
"""Answers that are kept; with more, all of them are forgotten."""


class Unreachable(BrooqError, ConnectionError):  # noqa: N818 - names the caller's situation
    """
    The database can't be asked: it is down, or refuses; ``reason`` is for the log alone, as it may name hosts.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class _Slot:
    turn: threading.Lock = field(default_factory=threading.Lock)
    until: float = -math.inf
    """When what was found is too old."""
    found: Any = None
    failure: Unreachable | None = None
    """Why nothing was."""


class Kept:
    """
    Answers that are handed out again for a while; whoever comes while one is being found waits for that one.

    That a database can't be reached is such an answer, too: who asks next needn't wait for the same end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._slots: dict[Hashable, _Slot] = {}

    def answer(self, key: Hashable, age: timedelta, find: Callable[[], T]) -> T:
        """
        Return what *find* returned last, up to *age* ago, or does now.

        Raises:
            Unreachable: It raised that, now or up to `FRESH` ago.
        """
        slot = self._slot(key)
        with slot.turn:
            if slot.until <= self._clock():
                try:
                    slot.found, slot.failure = find(), None
                except Unreachable as error:
                    slot.found, slot.failure, age = None, Unreachable(error.text, error.reason), FRESH
                slot.until = self._clock() + age.total_seconds()
            found, failure = slot.found, slot.failure
        if failure is not None:
            raise Unreachable(failure.text, failure.reason)
        return cast(T, found)

    def _slot(self, key: Hashable) -> _Slot:
        """
        Return where the answer to *key* is kept; those that are too old are forgotten when there is a new one.
        """
        with self._guard:
            if key not in self._slots:
                now = self._clock()
                fresh = {key: slot for key, slot in self._slots.items() if slot.until > now or slot.turn.locked()}
                self._slots = fresh if len(fresh) < MOST_KEPT else {}
            return self._slots.setdefault(key, _Slot())

    def clear(self) -> None:
        """
        Forget all of them.
        """
        with self._guard:
            self._slots.clear()
