"""
One run from end to end: a server, workers, a load, faults, a deployment half-way, and the figures.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, create_engine

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from tests.chaos.crew import KINDS, Crew
from tests.chaos.faults import Count, Faults
from tests.chaos.ledger import Ledger, Outcome
from tests.chaos.producer import Producer
from tests.chaos.workload import SLOTS, make_tables
from tests.waiting import eventually

LEFT_OVER: Final = 200
"""So many jobs are left when the faults end, for the deployment to interrupt."""
PATIENCE: Final = 60.0
"""Seconds for the jobs that are left, once nothing fails any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How large a run is.
    """

    jobs: int = 3_000
    seconds: float = 0.15
    """How long a handler takes on average."""
    kills: int = 60
    """No more than so many, however much work is left: on a busy machine it would take too long."""
    seed: int = 0
    """Picks the victims; what happens when is never the same."""

    @property
    def slots(self) -> int:
        """
        How many handlers run at once.
        """
        return len(KINDS) * SLOTS


@dataclass(frozen=True, slots=True)
class Figures:
    """
    What a run came to.
    """

    plan: Plan
    took: float
    """Seconds, from the first job to the last."""
    faults: Count
    outcome: Outcome
    enqueued: int
    """Jobs that the producer was told are in."""
    broken: int
    """Its transactions that it had to try again."""
    refused: int
    """Workers that were started while the server was away."""
    collapsed: tuple[str, ...]
    """Workers that ended by themselves."""
    stopped_in_hand: int
    """Jobs in the workers' hands when they were asked to stop, half-way."""
    stopped_left: int
    """... and when they had ended."""
    codes: tuple[int, ...]
    """The exit codes of all workers that were asked to stop."""
    processing: int
    """Jobs in ``processing`` after the last worker has ended."""
    deadlocks: int
    """In the server's log."""

    @property
    def lost(self) -> int:
        """
        What should be there and isn't.
        """
        return self.outcome.lost + self.enqueued - self.outcome.jobs

    @property
    def broken_promises(self) -> dict[str, int]:
        """
        What must be 0 and isn't.
        """
        outcome = self.outcome
        counts = {
            "lost": self.lost,
            "doubled": outcome.doubled,
            "exits from a terminal state": outcome.left_terminal,
            "moves that aren't allowed": outcome.forbidden_moves,
            "outcomes written by a worker that didn't hold the job": outcome.foreign,
            "leases ended by others before their time": outcome.robbed,
            "left by workers that were asked to stop": self.stopped_left,
            "left in processing at the end": self.processing,
            "workers that didn't stop cleanly": sum(code != 0 for code in self.codes),
            "workers that ended by themselves": len(self.collapsed),
            "deadlocks": self.deadlocks,
        }
        return {name: count for name, count in counts.items() if count}


def run(plan: Plan, folder: Path) -> Figures:
    """
    Make a run, and return what it came to.

    Args:
        plan: How large it is.
        folder: Where the workers' logs go.
    """
    with LocalPostgres(durable=False, settings={"max_connections": "300"}) as server:
        migrate(server.url())
        engine = create_engine(server.url(), pool_pre_ping=True, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                make_tables(connection)
            return _Run(plan, folder, server, engine).figures()
        finally:
            engine.dispose()


class _Run:
    """
    The parts of a run, and its chapters.
    """

    def __init__(self, plan: Plan, folder: Path, server: LocalPostgres, engine: Engine) -> None:
        self._plan = plan
        self._server = server
        self._ledger = Ledger(engine)
        self._producer = Producer(engine.execution_options(isolation_level="READ COMMITTED"), plan.jobs)
        self._crew = Crew(server.url(), plan.seconds, folder)
        self._faults = Faults(self._crew, server, engine, random.Random(plan.seed))

    def figures(self) -> Figures:
        began = time.monotonic()
        self._producer.start()
        try:
            with self._crew:
                self._crew.await_ready()
                self._faults.run(self._is_over, [self._is_past(1 / 3), self._is_past(2 / 3)])
                in_hand, left, codes = self._deploy()
                eventually(self._is_done, PATIENCE, "jobs are left")
                took = time.monotonic() - began
                codes += self._crew.stop()
        finally:
            self._producer.end()
        return Figures(
            plan=self._plan,
            took=took,
            faults=self._faults.count,
            outcome=self._ledger.outcome(),
            enqueued=self._producer.enqueued,
            broken=self._producer.broken,
            refused=self._crew.refused,
            collapsed=tuple(self._crew.collapsed),
            stopped_in_hand=in_hand,
            stopped_left=left,
            codes=tuple(codes),
            processing=self._ledger.processing(),
            deadlocks=len(re.findall("deadlock detected", self._server.log.read_text(errors="replace"))),
        )

    def _is_over(self) -> bool:
        enough = self._faults.count.kills >= self._plan.kills
        return enough or (self._producer.finished and self._ledger.unfinished() <= LEFT_OVER)

    def _is_past(self, part: float) -> Callable[[], bool]:
        return lambda: self._ledger.done() >= self._plan.jobs * part

    def _is_done(self) -> bool:
        return self._producer.finished and not self._ledger.unfinished()

    def _deploy(self) -> tuple[int, int, list[int]]:
        """
        Stop all workers while there is work, look at what they leave behind, and start others.
        """
        self._crew.await_ready()
        workers = [worker.identity for worker in self._crew.workers]
        in_hand = self._ledger.held_by(*workers)
        codes = self._crew.stop()
        left = self._ledger.held_by(*workers)
        self._crew.start()
        return in_hand, left, codes
