"""
A producer that enqueues 1,000 jobs a second, each in a transaction of its own, and a worker that runs them meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.pickup import measure_waits, spread
from tests.benchmark.servers import Lab

COUNT: Final = 3_000
PAUSE: Final = 0.001
SLOTS: Final = 100
"""Of ours; the peers have the settings that are best for a backlog."""


class Flow:
    """
    Milliseconds from the commit's return in the producer to the handler's start; and what the producer reached.
    """

    name = "flow"
    title = "Pickup while 1,000 jobs arrive in a second"
    kinds: frozenset[Kind] = frozenset({"async", "threads", "loop", "peer"})
    figures: Sequence[Figure] = (
        Figure("p50 ms", 2),
        Figure("p99 ms", 2),
        Figure("longest ms", 2),
        Figure("enqueued/s"),
    )

    def cases(self) -> Sequence[Case]:
        return [Case("1,000 jobs/s")]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:  # noqa: ARG002 - the only one
        milliseconds, rate = measure_waits(lab, contestant, scaled(COUNT, scale), PAUSE, SLOTS)
        return {**spread(milliseconds), "enqueued/s": rate}
