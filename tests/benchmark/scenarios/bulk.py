"""
Enqueuing many jobs at a time, in the fastest way that there is: with ours and bare SQL 10,000 in a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.children import carry_out
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.orders import Bulk as Order
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.servers import Lab

COUNT: Final = 200_000
"""At most."""
SECONDS: Final = 1.2


@dataclass(frozen=True)
class _Case(Case):
    keyed: bool = False


class Bulk:
    """
    Jobs per second, of objects that are there, and with the making of the objects; where there are none, or they are
    made by the call itself, the two are one.
    """

    name = "bulk"
    title = "Bulk enqueue"
    kinds: frozenset[Kind] = frozenset({"async", "loop", "peer", "producer"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("jobs/s with construction"), Figure("WAL B/job"))

    def cases(self) -> Sequence[Case]:
        return [_Case("without keys"), _Case("each with a key", "without keys", keyed=True, peers=False)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(min(COUNT, round(contestant.rates.bulk * SECONDS)), scale)
        with lab.database(contestant) as database:
            database.settle_down()
            before = database.wal()
            took = carry_out(contestant, Order(database.url, count, case.keyed))
            wal = (database.wal() - before) / count
        return {
            "jobs/s": count / took["seconds"],
            "jobs/s with construction": count / (took["seconds"] + took.get("building", 0.0)),
            "WAL B/job": wal,
        }
