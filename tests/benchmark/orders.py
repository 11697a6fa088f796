"""
What a process of a measurement is told to do. Plain values, sent as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Door = Literal["enqueue", "session"]
"""How one job is enqueued: by the call for it, or as part of a transaction of the consumer's."""

TOPIC = "bench"
"""What the measured jobs are; others are in nobody's way, or are meant to be."""


@dataclass(frozen=True)
class Prepare:
    """
    Make the tables in an empty database.

    Args:
        url: The database.
    """

    url: str


@dataclass(frozen=True)
class Work:
    """
    Run jobs until the measurement is over.

    Args:
        url: The database.
        marks: The file of the `Marks`.
        count: How many jobs there are.
        slots: How many jobs the process may hold at a time; ``None`` leaves all settings at their defaults.
        timed: Whether the moment of each job is of interest.
        seconds: How long a handler waits before it is done; then just as many run at once as there are slots.
        failing: Each job whose number is divisible by it fails in its first attempt; 0: none.
        steps: How many jobs follow each other in a chain, where the jobs are the first ones of chains.
        processes: How many processes the order is for, where a contestant starts them itself.
    """

    url: str
    marks: str
    count: int
    slots: int | None = None
    timed: bool = False
    seconds: float = 0.0
    failing: int = 0
    steps: int = 1
    processes: int = 1


@dataclass(frozen=True)
class Single:
    """
    Enqueue jobs one by one, each in a transaction of its own.

    Args:
        url: The database.
        count: How many.
        door: How.
        pause: Seconds between two; none means as fast as it goes.
        marks: The file of the `Marks` that gets the moment when each commit has returned, if anybody wants them.
    """

    url: str
    count: int
    door: Door = "enqueue"
    pause: float = 0.0
    marks: str | None = None


@dataclass(frozen=True)
class Bulk:
    """
    Enqueue jobs many at a time, in the fastest way that the contestant has.

    Args:
        url: The database.
        count: How many.
        keyed: Whether each has an idempotency key.
    """

    url: str
    count: int
    keyed: bool = False


Order = Prepare | Work | Single | Bulk

ORDERS: Final[Mapping[str, type[Order]]] = {kind.__name__: kind for kind in (Prepare, Work, Single, Bulk)}
