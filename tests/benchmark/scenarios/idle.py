"""
What a worker with nothing to do asks of the server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.children import running
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.orders import Work
from tests.benchmark.scenarios import Case, Figure
from tests.benchmark.scenarios.draining import marks_for
from tests.benchmark.servers import Lab

CALM: Final = 3.0
SECONDS: Final = 20.0


@dataclass(frozen=True)
class _Case(Case):
    workers: int = 1


class Idle:
    """
    Statements per second, of each worker; BEGIN and COMMIT are two of them.
    """

    name = "idle"
    title = "An idle worker, default settings"
    kinds: frozenset[Kind] = frozenset({"async"})
    figures: Sequence[Figure] = (Figure("statements/s", 2),)

    def cases(self) -> Sequence[Case]:
        return [_Case("1 worker"), _Case("20 workers", "1 worker", 20)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        with lab.database(contestant) as database, marks_for(1) as (path, _):
            database.count_statements()
            with running(contestant, *[Work(database.url, path, 1)] * case.workers) as workers:
                for worker in workers:
                    worker.go()
                time.sleep(CALM)
                began, before = time.monotonic(), database.statements()
                time.sleep(max(SECONDS * scale, 1.0))
                asked, span = database.statements() - before, time.monotonic() - began
        return {"statements/s": asked / span / case.workers}
