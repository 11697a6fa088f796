"""
``brooq-worker run --processes 2``, beside one process: a backlog that arrives when all processes are at work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from tests.benchmark.children import running
from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.orders import TOPIC, Work
from tests.benchmark.scenarios import Case, Figure, scaled
from tests.benchmark.scenarios.draining import finish, marks_for
from tests.benchmark.servers import Database, Lab

COUNT: Final = 120_000
SLOTS: Final = 1_000
CONNECTIONS: Final = 5
"""A process that is at work has at least so many."""
CALM: Final = 1.0
PATIENCE: Final = 30.0


@dataclass(frozen=True)
class _Case(Case):
    processes: int = 1


class Command:
    """
    Jobs per second, from the commit of the backlog on.
    """

    name = "command"
    title = "brooq-worker run, 1,000 slots in each process"
    kinds: frozenset[Kind] = frozenset({"command"})
    figures: Sequence[Figure] = (Figure("jobs/s"),)

    def cases(self) -> Sequence[Case]:
        return [_Case("--processes 1"), _Case("--processes 2", "--processes 1", processes=2)]

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        assert isinstance(case, _Case)
        count = scaled(COUNT, scale)
        with lab.database(contestant) as database, marks_for(count) as (path, marks):
            order = Work(database.url, path, count, SLOTS, processes=case.processes)
            with running(contestant, order) as (child,):
                child.go()
                _await_processes(database, case.processes)
                _put(database, contestant, count)
                return {"jobs/s": finish(database, contestant, marks, count, database.wal(), [child]).rate}


def _await_processes(database: Database, processes: int) -> None:
    """
    Wait until so many processes are connected, and idle.
    """
    limit = time.monotonic() + PATIENCE
    while database.sessions() < processes * CONNECTIONS:
        if time.monotonic() > limit:
            raise TimeoutError(f"{processes} processes have not come to work within {PATIENCE:g} s")
        time.sleep(0.05)
    time.sleep(CALM)


def _put(database: Database, contestant: Contestant, count: int) -> None:
    """
    Put in the jobs; the last one as a producer does, whose commit wakes all processes.
    """
    engine = create_engine(database.url)
    with Session(engine) as session:
        session.execute(text(contestant.stock("ready", count - 1)))
        session.execute(text("ANALYZE job"))
        session.add(brooq.Job(TOPIC, {"n": count - 1}))
        session.commit()
    engine.dispose()
