"""
A drain with something else in the table, against one without: the base of the scenarios that tell what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from tests.benchmark.contestants import Contestant, Kind, Stock
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.servers import Lab

SLOTS: Final = 200
COUNT: Final = 120_000


@dataclass(frozen=True)
class Surroundings(Case):
    """
    What else is in the table, by its kind.
    """

    stock: Mapping[Stock, int] = field(default_factory=dict)


class Among:
    """
    Jobs per second among other rows, and without.
    """

    figures: Sequence[Figure] = (Figure("jobs/s"),)
    kinds: frozenset[Kind] = frozenset({"async", "loop"})
    surroundings: ClassVar[Sequence[Surroundings]]

    def cases(self) -> Sequence[Case]:
        return self.surroundings

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, Surroundings)
        count = scaled(COUNT, scale)
        stock = {kind: scaled(rows, scale) for kind, rows in case.stock.items()}
        with lab.database(contestant, stock) as database:
            database.put(contestant.stock("ready", count))
            database.settle_down()
            return {"jobs/s": drain(database, contestant, count, SLOTS).rate}
