"""
Where it plays: one database with its observer, and all that is open on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.types.composite import CompositeInfo, register_composite
from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.orm import Session

from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.vocabulary import Outcome
from sqlalchemy_brooq.worker import assembly, lines
from sqlalchemy_brooq.worker import engine as engines
from sqlalchemy_brooq.worker import heartbeat as heartbeats
from sqlalchemy_brooq.worker import pump as pumps
from sqlalchemy_brooq.worker.connection import PrivateConnection
from tests.protocol.moves import Move, Scene
from tests.protocol.wires import Fault, LosingSession, Wire
from tests.protocol.workers import Ledger, Pilot, Stepwise

#: Each change of a job that commits leaves a row here, but for those that the observer itself makes.
MEMORY: Final = """
CREATE TABLE probe (job_id uuid, claimed_at timestamptz);
CREATE TABLE move (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT now(), old job, new job);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO move (old, new) VALUES (OLD, NEW);
    RETURN NULL;
END $$;
CREATE TRIGGER remember AFTER INSERT OR UPDATE OR DELETE ON job FOR EACH ROW
    WHEN (current_setting('brooq_model.observer', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION remember();
"""


@dataclass
class Pending:
    """
    A transaction that somebody has left open, and what its commit will bring.
    """

    connection: Connection
    ends: Callable[[Move], Outcome | None] = lambda _: None
    """The outcome that a move may write; ``None``: such a move is none of this transaction's."""
    claimer: str | None = None
    reaps: frozenset[UUID] = frozenset()
    holder: Pilot | None = None
    """Whose statement it is, if a whole worker lost its answer."""

    def end(self, *, commit: bool) -> None:
        with self.connection:
            transaction = self.connection.get_transaction()
            assert transaction is not None
            if commit:
                transaction.commit()
            else:
                transaction.rollback()


@dataclass
class Stage:
    """
    One database, its observer, and all that is open on it.
    """

    url: URL
    engine: Engine = field(init=False)
    wires: list[Wire] = field(default_factory=list)
    """Connections that are free for the next worker."""
    open: list[Pending] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    """When the workers' clocks stood still: time passes on them by the test's steps only, however long these take."""
    ahead: float = 0.0
    """Seconds that have passed since then for the pumps."""
    beats: float = 0.0
    """The same for the heartbeats."""
    commits: Fault | None = None
    """What happens to the commits of handlers' sessions."""

    def __post_init__(self) -> None:
        # Here everybody who holds a lock holds it over many steps: who waits for one, waits for ever.
        self.engine = create_engine(self.url, connect_args={"options": "-c lock_timeout=500ms"}, pool_size=20)
        self.metrics = Metrics(CollectorRegistry())
        dsn = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._observer = psycopg.connect(dsn, autocommit=True, options="-c brooq_model.observer=on")
        self._observer.execute(MEMORY)
        info = CompositeInfo.fetch(self._observer, "job")
        assert info is not None
        register_composite(info, self._observer)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Let the product build its workers with our connections, our executor and our clock.
        """
        monkeypatch.setattr(lines, "PrivateConnection", self.wire)
        monkeypatch.setattr(assembly, "Executor", Stepwise)
        monkeypatch.setattr(engines, "Journal", Ledger)
        monkeypatch.setattr(pumps, "time", SimpleNamespace(monotonic=self.clock))
        monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=lambda: self.began + self.beats))

    def clock(self) -> float:
        """
        The monotonic clock of every pump.
        """
        return self.began + self.ahead

    def wire(self, engine: Engine, **_: Any) -> Wire:
        return self.wires.pop() if self.wires else Wire(engine, self.wires)

    def session(self) -> Session:
        session = LosingSession(self.engine)
        session.fault = self.commits
        return session

    def clear(self) -> None:
        """
        Forget everything.
        """
        while self.open:
            self.open.pop().end(commit=False)
        self._observer.execute("TRUNCATE job, move, probe")
        self.began = time.monotonic()

    def close(self) -> None:
        self.clear()
        for wire in self.wires:
            PrivateConnection.close(wire)
        self.engine.dispose()
        self._observer.close()

    def look(self) -> tuple[Scene, list[Move]]:
        """
        Return what is there, and what has happened since the last look.
        """
        found = self._observer.execute("DELETE FROM move RETURNING n, at, old, new").fetchall()
        moves = [Move(*move) for _, *move in sorted(found, key=lambda row: row[0])]
        rows = {row.id: row for (row,) in self._observer.execute("SELECT job FROM job")}
        free = self._observer.execute("SELECT id FROM job FOR NO KEY UPDATE SKIP LOCKED") if self.open else None
        locked = frozenset(rows) - {id_ for (id_,) in free} if free else frozenset()
        probes = self._observer.execute("SELECT * FROM probe").fetchall()
        ((now,),) = self._observer.execute("SELECT now()")
        return Scene(now, rows, locked, probes), moves

    def edit(self, statement: str, *parameters: Any) -> None:
        """
        Change jobs without anybody's noticing: this is how time passes.
        """
        self._observer.execute(statement.encode(), parameters)
