"""
The faults: workers killed and frozen, leases taken away, the server crashed while all are at work.

Owns whom to hit and when, and a count of what hit work in hand. It goes on for as long as there is work to hit: a
kill that hits nobody's work proves nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.chaos.crew import Crew, WorkerProcess
from tests.chaos.ledger import Ledger
from tests.chaos.workload import LEASE

PACE: Final = 1.0
"""Seconds between two kills."""
FREEZE_EVERY: Final = 3
"""One kill in so many goes with a freeze, if nobody is frozen."""
FROZEN: Final = (LEASE + 0.5, LEASE * 2)
"""Seconds for which a worker is frozen: at least, and at most while its leases are not yet reaped."""
SEIZED: Final = 8
"""Leases that are taken away with each kill, from workers that live and know nothing of it."""
SEIZE: Final = text("""
WITH picked AS (
    SELECT id FROM job WHERE state = 'processing' ORDER BY random() LIMIT :count FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE job SET state = 'pending', requeues = requeues + 1, available_at = now(), locked_by = NULL, locked_until = NULL,
    updated_at = now()
FROM picked WHERE job.id = picked.id
""")
"""What an operator may do by hand, and a clock that jumps on the server."""
AWAY: Final = 1.5
"""Seconds for which a crashed server is gone."""


@dataclass(slots=True)
class Count:
    """
    How many faults there were.
    """

    kills: int = 0
    kills_in_hand: int = 0
    """Kills that left jobs behind in the hands of a dead worker."""
    freezes: int = 0
    freezes_outlived: int = 0
    """Freezes after which all leases that the worker held, one at least, had been given to others."""
    seized: int = 0
    """Leases that were taken away from a worker that lived."""
    server_kills: int = 0
    server_stops: int = 0


class Freeze:
    """
    A worker that is frozen, and what it held when it was.
    """

    def __init__(self, worker: WorkerProcess, ledger: Ledger) -> None:
        self.worker = worker
        self._ledger = ledger
        worker.freeze()
        self._since = time.monotonic()
        self._held = self._holds()

    @property
    def outlived(self) -> bool:
        """
        Whether it held leases, and has lost them all.
        """
        return bool(self._held) and self._holds() == 0

    @property
    def is_over(self) -> bool:
        """
        Whether it is time to go on.
        """
        least, most = FROZEN
        age = time.monotonic() - self._since
        return age > most or (age > least and self.outlived)

    def _holds(self) -> int | None:
        """
        Return how many jobs are pinned to it; ``None`` while the server can't tell.
        """
        with suppress(OperationalError):
            return self._ledger.held_by(self.worker.identity)
        return None


class ServerCrash:
    """
    A crash of the server on a thread of its own, so that the workers are hit while it is away.
    """

    def __init__(self, server: LocalPostgres, how: Literal["kill", "stop"]) -> None:
        self._server = server
        self._how = how
        self._thread = threading.Thread(target=self._run, name="crash")
        self._thread.start()

    def join(self) -> None:
        """
        Wait until the server is back.
        """
        self._thread.join()

    def _run(self) -> None:
        if self._how == "kill":
            self._server.kill()
        else:
            self._server.stop("immediate")
        threading.Event().wait(AWAY)
        self._server.start()


class Faults:
    """
    Hits workers and server, on the caller's thread.

    Args:
        crew: The workers.
        server: The server.
        engine: The database, for statements that commit by themselves.
        chance: Picks the victims.
    """

    def __init__(self, crew: Crew, server: LocalPostgres, engine: Engine, chance: random.Random) -> None:
        self.count = Count()
        self._crew = crew
        self._server = server
        self._engine = engine
        self._ledger = Ledger(engine)
        self._chance = chance
        self._freeze: Freeze | None = None
        self._crashes: list[ServerCrash] = []

    def run(self, is_over: Callable[[], bool], crashes: Sequence[Callable[[], bool]]) -> None:
        """
        Go on until *is_over*, and then leave a server and workers that work.

        Args:
            is_over: Whether there is too little work left to go on; asked before each kill.
            crashes: Conditions, each of which crashes the server once; by turns a kill and an immediate stop.
        """
        waiting = list(crashes)
        due = time.monotonic()
        try:
            while True:
                due += PACE
                self._look_after(until=due)
                if _is_true(is_over):
                    break
                self._kill()
                self._seize()
                self._freeze_one()
                if waiting and _is_true(waiting[0]):
                    del waiting[0]
                    self._crash()
        finally:
            for crash in self._crashes:
                crash.join()
            self._thaw()

    def _look_after(self, until: float) -> None:
        """
        Supervise the workers until the next hit is due.
        """
        while True:
            self._crew.replace_ended()
            if self._freeze is not None and self._freeze.is_over:
                self._thaw()
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, 0.02))

    def _kill(self) -> None:
        if victims := self._crew.ready():
            victim = self._chance.choice(victims)
            identity = victim.identity
            self._crew.kill(victim)
            self.count.kills += 1
            with suppress(OperationalError):
                self.count.kills_in_hand += self._ledger.held_by(identity) > 0

    def _seize(self) -> None:
        with suppress(OperationalError), self._engine.connect() as connection:
            self.count.seized += connection.execute(SEIZE, {"count": SEIZED}).rowcount

    def _freeze_one(self) -> None:
        if self._freeze is None and self.count.kills % FREEZE_EVERY == 0 and (others := self._crew.ready()):
            self._freeze = Freeze(self._chance.choice(others), self._ledger)
            self.count.freezes += 1

    def _thaw(self) -> None:
        if self._freeze is not None:
            self.count.freezes_outlived += self._freeze.outlived
            self._freeze.worker.thaw()
            self._freeze = None

    def _crash(self) -> None:
        if self.count.server_kills > self.count.server_stops:
            self.count.server_stops += 1
            self._crashes.append(ServerCrash(self._server, "stop"))
        else:
            self.count.server_kills += 1
            self._crashes.append(ServerCrash(self._server, "kill"))


def _is_true(condition: Callable[[], bool]) -> bool:
    """
    Ask a condition of the database's; false while it can't tell.
    """
    with suppress(OperationalError):
        return condition()
    return False
