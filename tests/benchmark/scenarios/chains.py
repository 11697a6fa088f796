"""
Chains of three jobs, each enqueued by `claim.chain` of the one before: in the transaction that writes that one as done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.scenarios.pickup import measure_waits, spread
from tests.benchmark.servers import Lab

STEPS: Final = 3
SLOTS: Final = 100
BACKLOG: Final = 2_000
ARRIVING: Final = 80
PAUSE: Final = 0.1


@dataclass(frozen=True)
class _Case(Case):
    arriving: bool = False


class Chains:
    """
    Chains per second of a backlog; and milliseconds from a chain's enqueuing to the start of its last handler.
    """

    name = "chains"
    title = "Chains of three jobs, 100 slots"
    kinds: frozenset[Kind] = frozenset({"async"})
    figures: Sequence[Figure] = (
        Figure("chains/s"),
        Figure("p50 ms", 2),
        Figure("p99 ms", 2),
    )

    def cases(self) -> Sequence[Case]:
        return [_Case("a backlog"), _Case("10 chains/s", arriving=True)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        if case.arriving:
            count = scaled(ARRIVING, scale, least=5)
            milliseconds, _ = measure_waits(lab, contestant, count, PAUSE, SLOTS, STEPS)
            figures = spread(milliseconds)
            return {name: figures[name] for name in ("p50 ms", "p99 ms")}
        count = scaled(BACKLOG, scale)
        with lab.database(contestant, {"ready": count}) as database:
            database.settle_down()
            return {"chains/s": drain(database, contestant, count, SLOTS, steps=STEPS).rate}
