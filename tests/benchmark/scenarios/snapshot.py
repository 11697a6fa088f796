"""
A drain while somebody holds a snapshot: no row that was changed since can be cleared away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import psycopg

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import drain
from tests.benchmark.scenarios.surroundings import SLOTS
from tests.benchmark.servers import Database, Lab, conninfo

COUNT: Final = 300_000
FREE: Final = Case("no snapshot")
HELD: Final = Case("a held snapshot", FREE.name)


class Snapshot:
    """
    What a forgotten transaction costs. Bare SQL walks over the dead rows, and would take minutes.
    """

    name = "snapshot"
    title = "Drain of 300,000 jobs under a held snapshot"
    kinds: frozenset[Kind] = frozenset({"async"})
    figures: Sequence[Figure] = (Figure("jobs/s"),)

    def cases(self) -> Sequence[Case]:
        return [FREE, HELD]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        count = scaled(COUNT, scale)
        with lab.database(contestant) as database:
            database.put(contestant.stock("ready", count))
            database.settle_down()
            if case == FREE:
                return {"jobs/s": drain(database, contestant, count, SLOTS).rate}
            with held(database):
                return {"jobs/s": drain(database, contestant, count, SLOTS).rate}


def held(database: Database) -> psycopg.Connection[tuple[object, ...]]:
    """
    Return a connection whose transaction has taken a snapshot.
    """
    connection = psycopg.connect(conninfo(database.url))
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1")
    return connection
