"""
How long an idle worker takes to notice a job that another process has enqueued. All settings are the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from tests.benchmark.children import Child, carry_out, running
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.marks import Marks
from tests.benchmark.orders import Single, Work
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import marks_for
from tests.benchmark.servers import Database, Lab

CALM: Final = 1.0
"""Seconds after which a worker that has started is idle."""
PATIENCE: Final = 20.0
"""Seconds after the last job was enqueued until the worker must have begun all."""


@dataclass(frozen=True)
class _Case(Case):
    count: int = 150
    pause: float = 0.1


class Pickup:
    """
    Milliseconds from the commit's return in the producer to the handler's start.
    """

    name = "pickup"
    title = "Pickup by an idle worker, default settings"
    kinds: frozenset[Kind] = frozenset({"async", "threads", "loop", "peer"})
    figures: Sequence[Figure] = (Figure("p50 ms", 2), Figure("p99 ms", 2), Figure("longest ms", 2))

    def cases(self) -> Sequence[Case]:
        return [_Case("10 jobs/s"), _Case("a job each 1.7 s", None, 12, 1.7, peers=False)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(case.count, scale, least=5)
        milliseconds, _ = measure_waits(lab, contestant, count, case.pause)
        return spread(milliseconds)


def spread(milliseconds: Sequence[float]) -> dict[str, float]:
    """
    Return the figures of latencies.
    """
    return {
        "p50 ms": median(milliseconds),
        "p99 ms": quantiles(milliseconds, n=100, method="inclusive")[-1],
        "longest ms": max(milliseconds),
    }


def measure_waits(
    lab: Lab, contestant: Contestant, count: int, pause: float, slots: int | None = None, steps: int = 1
) -> tuple[Sequence[float], float]:
    """
    Let a worker run jobs that arrive one by one; return the milliseconds that each waited, and the jobs per second.

    Args:
        lab: Where.
        contestant: Whose worker and producer.
        count: How many jobs.
        pause: Seconds between two of them.
        slots: How many the worker may hold; ``None`` leaves its settings at their defaults.
        steps: How many jobs follow each other in a chain; the last one's start counts.
    """
    with (
        lab.database(contestant) as database,
        marks_for(count) as (sent_path, sent),
        marks_for(count) as (begun_path, begun),
        running(contestant, Work(database.url, begun_path, count, slots, timed=True, steps=steps)) as (worker,),
    ):
        worker.go()
        await_calm(database)
        took = carry_out(contestant, Single(database.url, count, pause=pause, marks=sent_path))
        _await_all(begun, worker)
        pairs = zip(sent.moments(), begun.moments(), strict=True)
        return [(to - from_) * 1000 for from_, to in pairs], count / took["seconds"]


def await_calm(database: Database) -> None:
    """
    Wait until the worker is connected and has done what it does at its start.
    """
    while not database.sessions():
        time.sleep(0.05)
    time.sleep(CALM)


def _await_all(begun: Marks, worker: Child) -> None:
    limit = time.monotonic() + PATIENCE
    while not begun.all_begun():
        worker.check()
        if time.monotonic() > limit:
            raise TimeoutError(f"{begun.count()} jobs were begun, and {PATIENCE:g} s later no more")
        time.sleep(0.01)
