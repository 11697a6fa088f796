"""
A worker in the foreground of its process: from its start to the signal that ends it.

Knows of a queue only how it is started, stopped, hurried, and how it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, Protocol

from sqlalchemy_brooq.worker.aioloop import fulfil
from sqlalchemy_brooq.worker.engine import Health, StopReport
from sqlalchemy_brooq.worker.signals import StopSignals

LOOK: Final = 1.0
"""Seconds between looks at whether the worker can still do anything."""
LISTEN: Final = 0.1
"""Seconds between looks at whether a stop that is under way is to hurry, or is over."""


class Worked(Protocol):
    """
    A queue, as far as it is known here.
    """

    def start(self) -> None: ...  # noqa: D102 - as the queue's
    def stop(self) -> StopReport | None: ...  # noqa: D102
    def health(self) -> Health | None: ...  # noqa: D102


def work(
    queue: Worked, signals: StopSignals, *, hurry: Callable[[], object], ready: Callable[[], None] | None
) -> StopReport:
    """
    Start *queue*, wait for a signal, and stop; the end of *signals* is the caller's.

    Args:
        queue: Whose worker it is.
        signals: Already being listened to.
        hurry: Ends the grace period of a stop that is under way.
        ready: Called once the worker has started.
    """
    hung = 0
    queue.start()
    try:
        if ready is not None:
            ready()
        while not hung and queue.health() is not None and not signals.wait(LOOK):
            hung = _all_hung(queue.health())
    finally:
        report = _stop_unless_hurried(queue, signals, hurry)
    return replace(report, hung=hung)


def _all_hung(health: Health | None) -> int:
    """
    Return how many slots there are if hung handlers have taken them all, and otherwise 0.
    """
    return health.slots if health is not None and health.hung >= health.slots else 0


def _stop_unless_hurried(queue: Worked, signals: StopSignals, hurry: Callable[[], object]) -> StopReport:
    """
    Stop on another thread, while this one listens for a second signal.
    """
    expected = min(signals.count, 1)  # none, if the worker ends by itself
    reports: Future[StopReport | None] = Future()
    stopping = threading.Thread(target=fulfil, args=[reports, queue.stop], name="brooq-stop")
    stopping.start()
    while stopping.is_alive():
        if signals.wait(LISTEN) and signals.count > expected:
            hurry()
        stopping.join(LISTEN)
    return reports.result() or StopReport(0, 0)
