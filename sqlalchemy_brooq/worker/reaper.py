"""
The reaper: returns jobs with an expired lease to circulation, whoever held them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy_brooq.worker.attempt import Handler
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.port import ReaperPort

BATCH: Final = 1_000
"""Jobs a statement: short enough to hold no lock for long."""


class Reaper:
    """
    Runs in every process, with no leader, also while no slot is free.

    Args:
        port: Runs the statement.
        journal: Is told what was reaped.
        guards: ``max_requeues`` of the topics that have one (invariant 7).
        period: Seconds between rounds.
    """

    def __init__(self, port: ReaperPort, journal: Journal, guards: Mapping[str, int], period: float) -> None:
        self._port = port
        self._journal = journal
        self._guards = dict(guards)
        self._period = period

    def round(self) -> float:
        """
        Reap one batch, and return the seconds until the next round: none while batches come back full.
        """
        jobs = self._port.reap(self._guards, BATCH)
        if jobs:
            self._journal.reaped(jobs)
        return 0.0 if len(jobs) >= BATCH else self._period


def guards_of(handlers: Mapping[str, Handler]) -> dict[str, int]:
    """
    Return the topics that have a poison guard, and their ``max_requeues``.
    """
    limits = {topic: handler.options.max_requeues for topic, handler in handlers.items()}
    return {topic: limit for topic, limit in limits.items() if limit is not None}
