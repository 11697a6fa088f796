"""
A backlog of jobs that do nothing: what the queue itself costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.servers import Lab


@dataclass(frozen=True)
class _Case(Case):
    slots: int = 1
    processes: int = 1


SIZES: Final = {1: 5_000, 10: 30_000, 200: 120_000, 1_000: 150_000}
"""How many jobs, by the slots that there are for them: some seconds' worth."""


class Drain:
    """
    Jobs per second, by slots and processes.
    """

    name = "drain"
    title = "Drain of a backlog"
    kinds: frozenset[Kind] = frozenset({"async", "threads", "loop"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("WAL B/job"))

    def cases(self) -> Sequence[Case]:
        return [
            _Case(
                f"{slots:,} slot{'s' * (slots > 1)}, {processes} process{'es' * (processes > 1)}",
                None,
                slots,
                processes,
            )
            for processes in (1, 2)
            for slots in SIZES
        ]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(SIZES[case.slots] * case.processes, scale)
        with lab.database(contestant) as database:
            database.put(contestant.stock("ready", count))
            database.settle_down()
            drained = drain(database, contestant, count, case.slots, case.processes)
        return {"jobs/s": drained.rate, "WAL B/job": drained.wal}
