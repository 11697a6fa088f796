"""
The stage of the protocol's model: a database that remembers every move of every job, connections that lose answers,
transactions that stay open, and workers whose rounds and handlers are steps of the test.

Owns what is disturbed and what is seen. What must hold of it is said in `test_protocol_model`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.types.composite import CompositeInfo, register_composite
from sqlalchemy import URL, Connection, Engine, Executable, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.vocabulary import MOVES, Event, JobState, Outcome
from sqlalchemy_brooq.worker import engine as engines
from sqlalchemy_brooq.worker import pump as pumps
from sqlalchemy_brooq.worker.attempt import Attempt, Handler, Key
from sqlalchemy_brooq.worker.connection import PrivateConnection, Rows
from sqlalchemy_brooq.worker.executor import Executor
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.store import HeartbeatStore, PumpStore
from sqlalchemy_brooq.worker.turns import Turns

LEASE: Final = timedelta(seconds=30)
PLAIN, TRANSACTIONAL, GUARDED = TOPICS = ("mail", "books", "risky")
GUARD: Final = {GUARDED: 1}
"""``max_requeues`` of the topics that have one."""
MAX_ATTEMPTS: Final = 2
ROUND: Final = 0.1
"""Seconds between two rounds of a pump: more than it pauses before it writes a refused outcome again."""
AT_ONCE: Final = timedelta(microseconds=1)
CONFIG: Final = brooq.Config(
    workers=2, prefetch=1, lease=LEASE, backoff_base=AT_ONCE, backoff_max=AT_ONCE, max_attempts=MAX_ATTEMPTS
)

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

Row = Any
"""A job as it was read: a named tuple of the table's columns."""
ENTERED: Final = {enters: event for event, (_, enters) in MOVES.items()}


class Kind(Enum):
    INSERT = auto()
    DELETE = auto()
    RENEWAL = auto()
    CLAIM = auto()
    END = auto()
    """An outcome, a cancellation, or a job given back."""
    REAP = auto()


@dataclass(frozen=True)
class Move:
    """
    One change of one job, as the trigger saw it.
    """

    at: datetime
    """When its transaction began."""
    old: Row
    new: Row

    @property
    def id(self) -> UUID:
        found: UUID = (self.new or self.old).id
        return found

    @property
    def key(self) -> Key:
        """
        The attempt that it ended, or began.
        """
        row = self.new if self.kind is Kind.CLAIM else self.old
        return row.id, row.claimed_at

    @property
    def event(self) -> Event:
        return ENTERED[self.new.state]

    @property
    def kind(self) -> Kind:
        if self.old is None:
            return Kind.INSERT
        if self.new is None:
            return Kind.DELETE
        if self.old.state == self.new.state:
            return Kind.RENEWAL
        if self.event is Event.CLAIMED:
            return Kind.CLAIM
        poisoned = self.event is Event.DEAD and self.new.last_error.startswith("lease expired")
        return Kind.REAP if poisoned or self.new.requeues != self.old.requeues else Kind.END

    def changed(self) -> set[str]:
        return {name for name in self.new._fields if getattr(self.old, name) != getattr(self.new, name)}


@dataclass(frozen=True)
class Scene:
    """
    What is committed, and which rows an open transaction has locked.
    """

    now: datetime
    rows: Mapping[UUID, Row]
    locked: frozenset[UUID]
    probes: Sequence[Key]

    def lives(self, claim: Claim | None, worker: str) -> bool:
        """
        Whether *claim* owns its row, as a claim of *worker*.
        """
        row = self.rows.get(claim.id) if claim else None
        return row is not None and (row.state, row.locked_by, row.claimed_at) == (
            JobState.PROCESSING,
            worker,
            claim and claim.claimed_at,
        )

    def is_free(self, job_id: UUID) -> bool:
        return job_id not in self.locked


class Fault(Enum):
    """
    How an answer gets lost.
    """

    BEFORE = auto()
    """The statement ran, and was rolled back."""
    AFTER = auto()
    """It committed."""
    LATE = auto()
    """The server still has it: it commits, or not, while the worker goes on."""


class AnswerLost(OperationalError):
    def __init__(self) -> None:
        super().__init__("(a statement)", None, psycopg.OperationalError("the answer was lost"))


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


class Wire(PrivateConnection):
    """
    An engine's own connection, which loses answers as planned.
    """

    def __init__(self, stage: Stage, engine: Engine) -> None:
        super().__init__(engine)
        self._stage = stage
        self._plan: deque[Fault | None] = deque()
        self.late: Connection | None = None
        """The transaction of the statement whose answer was lost last, if it is still open."""

    @contextmanager
    def losing(self, fault: Fault | None, after: int = 0) -> Iterator[None]:
        """
        Lose the answer of the statement after the next *after* ones.
        """
        self._plan, self.late = deque([*[None] * after, fault]), None
        try:
            yield
        finally:
            self._plan.clear()

    def rows(self, statement: Executable, parameters: Mapping[str, Any], *, limit: float) -> Rows:
        fault = self._plan.popleft() if self._plan else None
        if fault is None:
            return super().rows(statement, parameters, limit=limit)
        connection = self._engine.connect()
        try:
            transaction = connection.begin()
            connection.execute(statement, parameters).all()
        except BaseException:
            connection.close()
            raise
        if fault is Fault.LATE:
            self.late = connection
        else:
            transaction.commit() if fault is Fault.AFTER else transaction.rollback()
            connection.close()
        raise AnswerLost

    def close(self) -> None:
        self._stage.wires.append(self)


class LosingSession(Session):
    """
    A consumer's session whose commits may go unanswered.
    """

    fault: Fault | None = None

    def commit(self) -> None:
        if self.fault is Fault.BEFORE:
            self.rollback()
        else:
            super().commit()
        if self.fault is not None:
            raise AnswerLost


class Stepwise(Executor):
    """
    The executor without its threads: a handler runs when `step` is called.
    """

    handed: tuple[Attempt, ...] = ()
    """What it was given last."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.handed = tuple(attempts)
        super().submit(attempts)

    def step(self, attempt: Attempt) -> None:
        self._run_plain(attempt)

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        pass


class Ledger(Journal):
    """
    Keeps what the engine says of its attempts, and logs nothing.
    """

    def __init__(self, meter: Any) -> None:
        super().__init__(meter)
        self.entries: list[tuple[Claim, Outcome | None]] = []

    def settled(self, claim: Claim, outcome: Outcome) -> None:
        self.entries.append((claim, outcome))

    def lost(self, claim: Claim) -> None:
        self.entries.append((claim, None))


class Act(Enum):
    """
    What a handler does.
    """

    RETURN = auto()
    RETRY = auto()
    PRESERVE = auto()
    CANCEL = auto()
    FAIL = auto()
    OBEY = auto()
    """Ends with the interruption's cause."""
    CHAIN = auto()
    """Chains jobs, and gives a callback that writes."""
    CHAIN_BADLY = auto()
    """The same, and the callback fails after it has written."""
    UNSTORABLE = auto()
    """Returns; its result is one that the database will refuse."""


RAISED: Final[Mapping[Act, Callable[[], Exception]]] = {
    Act.RETRY: lambda: brooq.RetryLater(timedelta(0)),
    Act.PRESERVE: brooq.PreserveAttempt,
    Act.CANCEL: brooq.CancelJob,
    Act.FAIL: lambda: ValueError("no"),
}


class Pilot:
    """
    A whole worker as the product builds it, with none of its threads: its rounds are steps of the test.
    """

    def __init__(self, stage: Stage, topics: Sequence[str]) -> None:
        self.topics = topics
        self.guards = {topic: limit for topic, limit in GUARD.items() if topic in topics}
        self.attempts: dict[Key, Attempt] = {}
        """Every attempt that it has heard of."""
        self.chains: dict[Key, list[brooq.Job]] = {}
        """What its handlers chained, by attempt."""
        self.effects: set[Key] = set()
        """The attempts that wrote to ``probe``."""
        self.dropped: set[Key] = set()
        """Attempts whose leases it left to themselves, or whose claims it never heard of."""
        self.act = Act.RETURN
        self.chained_key: str | None = None
        """The key of the second job that a handler chains."""
        self._stage = stage
        sources = engines.Sources(stage.engine, stage.session, None)
        self.worker = engines.Worker(sources, CONFIG, {topic: self._handler(topic) for topic in topics}, stage.metrics)

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def executor(self) -> Stepwise:
        assert isinstance(self.worker._executor, Stepwise)
        return self.worker._executor

    @property
    def ledger(self) -> Ledger:
        assert isinstance(self.worker._journal, Ledger)
        return self.worker._journal

    @property
    def wires(self) -> Sequence[Wire]:
        """
        The pump's and the heartbeat's connection.
        """
        pump, heartbeat = self.worker._connections
        assert isinstance(pump, Wire)
        assert isinstance(heartbeat, Wire)
        return pump, heartbeat

    def known(self) -> dict[Key, Attempt]:
        """
        The attempts whose leases it believes to hold.
        """
        known = {attempt.key: attempt for attempt in self.worker._in_flight.all()}
        self.attempts |= known
        return known

    def round(self, loop: str) -> bool:
        """
        Let *loop* make a round, as its thread would; False if that failed for want of an answer.
        """
        self._stage.ahead += ROUND
        try:
            self.worker._loops[loop]._body()
        except AnswerLost:
            self.worker._loops[loop]._recover()
            return False
        finally:
            self.known()
        return True

    def run(self, attempt: Attempt, act: Act) -> None:
        """
        Let a handler that has begun do something, and end.
        """
        self.act = act
        self.executor.step(attempt)
        if act is Act.UNSTORABLE and attempt.outcome is not None:
            attempt.outcome = Outcome(Event.DONE, result="{")

    def outcome(self, move: Move) -> Outcome | None:
        """
        Return the outcome that this worker may write by *move*: one that was decided, or the return of what it lost.
        """
        if move.old.locked_by != self.name:
            return None
        attempt = self.attempts.get(move.key)
        if attempt is None or attempt.outcome is None:
            return Outcome(Event.REQUEUED, refund=True)
        return attempt.outcome

    def stop(self, *, obeyed: bool) -> None:
        """
        Shut down as the engine does when the grace period is over.
        """
        self.worker._pump.stop_claiming()
        self.worker._requeue_waiting()
        self.executor.interrupt()
        for attempt in self.executor.running() if obeyed else ():
            self.run(attempt, Act.OBEY)
        self.dropped |= {attempt.key for attempt in self.executor.running()}
        self.worker._abandon()
        for _ in range(3):
            self.round("pump")

    def close(self) -> None:
        for wire in self.wires:
            wire.close()

    def _handler(self, topic: str) -> Handler:
        options = brooq.HandlerOptions(max_requeues=GUARD.get(topic), transactional=topic == TRANSACTIONAL)
        return Handler(topic, self._handle, options.resolve(CONFIG), is_async=False)

    def _handle(self, claim: Claim, session: Session | None = None) -> None:
        key = (claim.id, claim.claimed_at)
        if session is not None:
            self._probe(key, session)
        if raised := RAISED.get(self.act):
            raise raised()
        claim.check()
        if self.act in (Act.CHAIN, Act.CHAIN_BADLY):
            jobs = [brooq.Job(PLAIN), brooq.Job(TRANSACTIONAL, idempotency_key=self.chained_key)]
            self.chains[key] = jobs
            claim.chain(*jobs)
            claim.on_success(lambda session: self._call_back(key, session))

    def _call_back(self, key: Key, session: Session) -> None:
        if key[0] not in session.info:  # the handler may have written already
            self._probe(key, session)
        if self.act is Act.CHAIN_BADLY:
            raise ValueError("no")

    def _probe(self, key: Key, session: Session) -> None:
        session.info[key[0]] = True
        self.effects.add(key)
        session.execute(
            text("INSERT INTO probe VALUES (:job_id, :claimed_at)"), {"job_id": key[0], "claimed_at": key[1]}
        )


class Bare:
    """
    A worker that is nothing but its statements.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.wire = stage.wire(stage.engine)
        self.store = PumpStore(self.wire, name, LEASE, 10.0)
        self.beat = HeartbeatStore(self.wire, name, LEASE, 10.0)
        self.turns = Turns(TOPICS)


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
    ahead: float = 0.0
    """Seconds by which the pumps' monotonic clock is ahead of this process's."""
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
        monkeypatch.setattr(engines, "PrivateConnection", self.wire)
        monkeypatch.setattr(engines, "Executor", Stepwise)
        monkeypatch.setattr(engines, "Journal", Ledger)
        monkeypatch.setattr(pumps, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + self.ahead))

    def wire(self, engine: Engine, **_: Any) -> Wire:
        return self.wires.pop() if self.wires else Wire(self, engine)

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

    def edit(self, statement: str, ids: Sequence[UUID]) -> None:
        """
        Change jobs without anybody's noticing: this is how time passes.
        """
        self._observer.execute(statement.encode(), [list(ids)])
