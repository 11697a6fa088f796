"""
A server whose commits take long, as on a network's disk or with a replica that has to confirm.

It is simulated by PostgreSQL's own ``commit_delay``, which makes whoever writes the log sleep before it is synced, with
``commit_siblings = 0``, so that it always does. As with a slow disk, others that commit meanwhile wait and are then
written together; unlike there, one that comes during the sleep still goes with it. What a commit then really takes is
measured each time, by bare SQL that does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.benchmark.children import carry_out
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.orders import Single
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.scenarios.queues import SLOTS
from tests.benchmark.servers import Database, Lab

SECONDS: Final = 1.0
ENQUEUED: Final = 200
PROBES: Final = 50


@dataclass(frozen=True)
class _Case(Case):
    delay: int = 0


class Commits:
    """
    Jobs per second of a drain, and of a client that enqueues one by one.
    """

    name = "commits"
    title = "Commits that take long"
    kinds: frozenset[Kind] = frozenset({"async", "loop", "peer"})
    figures: Sequence[Figure] = (Figure("jobs/s"), Figure("enqueued/s"), Figure("a commit, ms", 2))

    def cases(self) -> Sequence[Case]:
        base = "as the disk is"
        return [_Case(base), _Case("1 ms more", base, 1_000), _Case("5 ms more", base, 5_000)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(round(contestant.rates.drain * SECONDS), scale)
        with lab.database(contestant, {"ready": count}) as database:
            database.settle_down()
            database.set("commit_siblings", "0")
            database.set("commit_delay", str(case.delay))
            commit = _commit_takes(database)
            rate = drain(database, contestant, count, SLOTS).rate
            enqueued = scaled(ENQUEUED, scale)
            took = carry_out(contestant, Single(database.url, enqueued))
        return {"jobs/s": rate, "enqueued/s": enqueued / took["seconds"], "a commit, ms": commit}


def _commit_takes(database: Database) -> float:
    """
    Return the milliseconds that a commit of one row takes, the usual one of many.
    """
    database.put("CREATE TABLE bench_probe (n int)")
    times = []
    with database.connected() as connection:  # a new one, to which the settings apply
        for number in range(PROBES):
            began = time.perf_counter()
            connection.execute("INSERT INTO bench_probe VALUES (%s)", [number])
            times.append(time.perf_counter() - began)
    return median(times) * 1000
