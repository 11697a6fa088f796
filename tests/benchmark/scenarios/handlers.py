"""
Handlers that wait for something: 5 ms, as for a query or a cache, and 100 ms, as for a call of somebody's interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.servers import Lab

SLOTS: Final = 100


@dataclass(frozen=True)
class _Case(Case):
    seconds: float = 0.0
    count: int = 0


class Handlers:
    """
    Jobs per second, and the part of what a hundred handlers at a time could do if the queue cost nothing.
    """

    name = "handlers"
    title = "Handlers that wait, 100 at a time in one process"
    kinds: frozenset[Kind] = frozenset({"async", "threads", "peer"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("of what is possible", 2))

    def cases(self) -> Sequence[Case]:
        return [_Case("5 ms", seconds=0.005, count=25_000), _Case("100 ms", seconds=0.1, count=2_000)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(min(case.count, contestant.rates.drain * 2), scale)
        with lab.database(contestant, {"ready": count}) as database:
            database.settle_down()
            rate = drain(database, contestant, count, SLOTS, seconds=case.seconds).rate
        return {"jobs/s": rate, "of what is possible": rate * case.seconds / SLOTS}
