"""
The memory of a worker with 1,000 slots, over a million jobs. Read from Linux's ``/proc``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.benchmark.children import Child
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.marks import Marks
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.servers import Lab

COUNT: Final = 1_000_000
SLOTS: Final = 1_000
EARLY: Final = 0.1
"""The part of the jobs after which the first reading is made."""


class Memory:
    """
    Megabytes after a tenth of the jobs, and at the end.
    """

    name = "memory"
    title = "Memory of a worker with 1,000 slots"
    kinds: frozenset[Kind] = frozenset({"async", "threads"})
    figures: Sequence[Figure] = (
        Figure("growth MB", 1),
        Figure("MB after 100,000 jobs", 1),
        Figure("MB after 1,000,000 jobs", 1),
        Figure("jobs/s"),
    )

    def cases(self) -> Sequence[Case]:
        return [Case("1,000,000 jobs")]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:  # noqa: ARG002 - the only one
        count = scaled(COUNT, scale)
        readings = _Readings(round(count * EARLY))
        with lab.database(contestant, {"ready": count}) as database:
            database.settle_down()
            drained = drain(database, contestant, count, SLOTS, watch=readings.watch)
        return {
            "growth MB": readings.last - readings.early,
            "MB after 100,000 jobs": readings.early,
            "MB after 1,000,000 jobs": readings.last,
            "jobs/s": drained.rate,
        }


class _Readings:
    """
    What the process held when the first *threshold* jobs had begun, and what it held last.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.early = math.nan
        self.last = math.nan

    def watch(self, marks: Marks, child: Child) -> None:
        held = resident(child.pid)
        if math.isnan(self.early) and marks.all_begun(among=self._threshold):
            self.early = held
        self.last = held


def resident(pid: int) -> float:
    """
    Return the resident memory of a process, in megabytes.
    """
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else math.nan
