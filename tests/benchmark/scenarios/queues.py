"""
A backlog run by each queue as fast as it goes: with the best settings of each, and as many jobs as take some seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.servers import Lab

SECONDS: Final = 2.0
SLOTS: Final = 1_000
"""Of ours, and more than bare SQL takes at a time; the peers have settings of their own."""


@dataclass(frozen=True)
class _Case(Case):
    processes: int = 1


class Queues:
    """
    Jobs per second, by processes.
    """

    name = "queues"
    title = "Drain of a backlog, each queue at its best"
    kinds: frozenset[Kind] = frozenset({"async", "threads", "loop", "peer"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("WAL B/job"), Figure("jobs"))

    def cases(self) -> Sequence[Case]:
        return [_Case("1 process"), _Case("2 processes", processes=2)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(round(contestant.rates.drain * SECONDS), scale)
        with lab.database(contestant, {"ready": count}) as database:
            database.settle_down()
            drained = drain(database, contestant, count, SLOTS, case.processes)
        return {"jobs/s": drained.rate, "WAL B/job": drained.wal, "jobs": count}
