"""
A backlog of which a tenth fails, once: each of these is written as failed with its error, waits, and runs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.scenarios.surroundings import SLOTS
from tests.benchmark.servers import Lab

COUNT: Final = 100_000


@dataclass(frozen=True)
class _Case(Case):
    failing: int = 0


class Retries:
    """
    Jobs per second, until the last retry is done.
    """

    name = "retries"
    title = "Failures, with 0.1 s until the next attempt"
    kinds: frozenset[Kind] = frozenset({"async", "threads"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("WAL B/job"))

    def cases(self) -> Sequence[Case]:
        return [_Case("none fails"), _Case("10 % fail once", "none fails", failing=10)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(COUNT, scale)
        with lab.database(contestant, {"ready": count}) as database:
            database.settle_down()
            drained = drain(database, contestant, count, SLOTS, failing=case.failing)
        return {"jobs/s": drained.rate, "WAL B/job": drained.wal}
