"""
What a job leaves in the write-ahead log, from the producer's commit to the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.benchmark.children import carry_out
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.orders import Bulk
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.scenarios.surroundings import SLOTS
from tests.benchmark.servers import Lab

COUNT: Final = 120_000


class Wal:
    """
    Bytes for each job, with the images of whole pages that follow a checkpoint.
    """

    name = "wal"
    title = "Write-ahead log"
    kinds: frozenset[Kind] = frozenset({"async", "loop"})
    figures: Sequence[Figure] = (Figure("in + run B/job"), Figure("in B/job"), Figure("run B/job"))

    def cases(self) -> Sequence[Case]:
        return [Case("enqueued in bulk, 200 slots")]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:  # noqa: ARG002 - the only one
        count = scaled(COUNT, scale)
        with lab.database(contestant) as database:
            database.settle_down()
            before = database.wal()
            carry_out(contestant, Bulk(database.url, count))
            into = (database.wal() - before) / count
            database.settle_down()
            run = drain(database, contestant, count, SLOTS).wal
        return {"in + run B/job": into + run, "in B/job": into, "run B/job": run}
