"""
The producer: keeps the workers supplied until all jobs are in, whatever the server does meanwhile.
"""

from __future__ import annotations

import threading
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.chaos.ledger import Ledger
from tests.chaos.workload import jobs

BATCH: Final = 20
"""Jobs a transaction."""
BACKLOG: Final = 600
"""The producer waits while so many jobs are not over."""


class Producer:
    """
    Enqueues jobs on a thread of its own.

    Args:
        engine: The database's engine.
        total: How many jobs to enqueue.
    """

    def __init__(self, engine: Engine, total: int) -> None:
        self._engine = engine
        self._total = total
        self._ledger = Ledger(engine)
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        self.enqueued = 0
        """Jobs whose transactions have committed, as the producer was told."""
        self.broken = 0
        """Transactions that failed, or whose answer was lost, and that were tried again."""

    @property
    def finished(self) -> bool:
        """
        Whether all jobs are in.
        """
        return self.enqueued == self._total

    def start(self) -> None:
        """
        Begin.
        """
        self._thread.start()

    def end(self) -> None:
        """
        Stop, also half-way.
        """
        self._halt.set()
        self._thread.join()

    def _run(self) -> None:
        while not (self._halt.is_set() or self.finished):
            try:
                self._round()
            except OperationalError:
                self.broken += 1
                self._halt.wait(0.1)

    def _round(self) -> None:
        if self._ledger.unfinished() >= BACKLOG:
            self._halt.wait(0.05)
            return
        last = min(self.enqueued + BATCH, self._total)
        with Session(self._engine) as session, session.begin():
            session.add_all(jobs(self.enqueued, last))
        self.enqueued = last
