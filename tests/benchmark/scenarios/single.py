"""
Enqueuing jobs one by one, each in a transaction of its own, by one client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.children import carry_out
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.orders import Door
from tests.benchmark.orders import Single as Order
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.servers import Lab

SECONDS: Final = 1.5


@dataclass(frozen=True)
class _Case(Case):
    door: Door = "enqueue"


class Single:
    """
    Jobs per second. Bare SQL has one way only, an INSERT that commits by itself, and the peers have their own.
    """

    name = "single"
    title = "Single enqueue"
    kinds: frozenset[Kind] = frozenset({"async", "loop", "peer"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("WAL B/job"))

    def cases(self) -> Sequence[Case]:
        return [_Case("queue.enqueue"), _Case("session.add, commit", door="session", peers=False)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(round(contestant.rates.single * SECONDS), scale)
        with lab.database(contestant) as database:
            database.settle_down()
            before = database.wal()
            took = carry_out(contestant, Order(database.url, count, case.door))
            wal = (database.wal() - before) / count
        return {"jobs/s": count / took["seconds"], "WAL B/job": wal}
