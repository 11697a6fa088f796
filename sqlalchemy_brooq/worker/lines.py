"""
The connections that a worker has to itself: whose each is, and how long a call on it may take.

Owns what all of them change together; knows nothing of what is said over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine

from sqlalchemy_brooq.statements.producing import notify
from sqlalchemy_brooq.worker.connection import PrivateConnection

STATEMENT: Final = (2.0, 30.0)
"""The least and the most seconds that a statement may take before the server counts as frozen."""
UPKEEP: Final = 60.0
"""The same for retention and the sampler: a batch may take long, and no job waits for it."""


class Lines:
    """
    A connection for each pump, the heartbeat, the reaper and the listener; one for retention and the sampler.

    Args:
        engine: The engine whose connections are imitated.
        pumps: How many pumps there are.
        lease: How long a claim is good for, in seconds.
        plain: Use nothing of a session's state.
    """

    def __init__(self, engine: Engine, *, pumps: int, lease: float, plain: bool) -> None:
        self.pumps = [PrivateConnection(engine, plain=plain) for _ in range(pumps)]
        self.heartbeat, self._reaper, self._upkeep, self.listener = (
            PrivateConnection(engine, plain=plain) for _ in range(4)
        )
        self.all = (*self.pumps, self.heartbeat, self._reaper, self._upkeep, self.listener)
        self.limit = min(max(lease / 3, STATEMENT[0]), STATEMENT[1])
        """Seconds that a statement may take, but for the heartbeat's."""

    @contextmanager
    def reaping(self) -> Iterator[Connection]:
        """
        Lend the reaper's connection in a transaction.
        """
        with self._reaper.transaction(limit=self.limit) as connection:
            yield connection

    @contextmanager
    def upkeep(self) -> Iterator[Connection]:
        """
        Lend the connection of retention and the sampler in a transaction.
        """
        with self._upkeep.transaction(limit=UPKEEP) as connection:
            yield connection

    def notify(self, payload: str) -> None:
        """
        Send a notification, by another connection than the listener's.
        """
        with self.reaping() as connection:
            connection.execute(notify(), {"wakeups": [payload]})

    def own_sessions(self) -> None:
        """
        Let the pumps change settings of their sessions, which turned out to be nobody else's.
        """
        for connection in self.pumps:
            connection.plan_once()

    def share_sessions(self) -> None:
        """
        Use nothing of a session's state any more: it turned out to be other clients' as well.
        """
        for connection in self.all:
            connection.become_plain()

    def wake(self) -> None:
        """
        Break off every call that is under way.
        """
        for connection in self.all:
            connection.expire(float("inf"))

    def leave_to_parent(self) -> None:
        """
        Have nothing of them any more, in a forked child.
        """
        for connection in self.all:
            connection.cut_off()

    def close(self) -> None:
        """
        Close them for good.
        """
        for connection in self.all:
            connection.close()
