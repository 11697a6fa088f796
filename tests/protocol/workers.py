"""
Who works: whole workers, as the product builds them, and workers that are nothing but their statements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import Event, JobState, Outcome
from sqlalchemy_brooq.worker import engine as engines
from sqlalchemy_brooq.worker.attempt import Attempt, Handler
from sqlalchemy_brooq.worker.executor import Executor
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.setup import Setup, Sources
from sqlalchemy_brooq.worker.store import HeartbeatStore, PumpStore
from sqlalchemy_brooq.worker.turns import Turns
from tests.protocol.moves import Key, Move, key_of
from tests.protocol.wires import AnswerLost, Fault, Wire

if TYPE_CHECKING:
    from tests.protocol.stage import Stage

LEASE: Final = timedelta(minutes=10)
PLAIN, TRANSACTIONAL, GUARDED = TOPICS = ("mail", "books", "risky")
GUARD: Final = {GUARDED: 1}
"""``max_requeues`` of the topics that have one."""
MAX_ATTEMPTS: Final = 2
ROUND: Final = 0.2
"""Seconds between two rounds of a pump: more than it pauses before it writes a refused outcome again."""
UNSTORABLE: Final = "{"
"""A result that the database refuses."""
AT_ONCE: Final = timedelta(microseconds=1)
RETENTION: Final = timedelta(days=30)
CONFIG: Final = brooq.Config(
    workers=2,
    prefetch=1,
    lease=LEASE,
    backoff_base=AT_ONCE,
    backoff_max=AT_ONCE,
    max_attempts=MAX_ATTEMPTS,
    retention_ttl=RETENTION,
    retention_batch=2,
)


class Stepwise(Executor):
    """
    The executor without its threads: a handler runs when `step` is called.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.handed: list[Attempt] = []
        """What it was given, in order."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self.handed += attempts
        super().submit(attempts)

    def step(self, attempt: Attempt) -> None:
        self._run_plain(attempt)

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        pass

    def _follow(self, ready: list[Attempt]) -> Attempt | None:  # noqa: ARG002 - the base class's signature
        return None


class Ledger(Journal):
    """
    Keeps what the engine says of its attempts, and logs nothing.
    """

    def __init__(self, meter: Any, _: object = None) -> None:
        super().__init__(meter)
        self.entries: list[tuple[Claim, Outcome | None]] = []
        """Each attempt that ended, with its outcome; ``None`` for a lost one."""

    def settled(self, claim: Claim, outcome: Outcome) -> None:
        self.entries.append((claim, outcome))

    def settled_all(self, settled: Sequence[tuple[Claim, Outcome]]) -> None:
        self.entries += settled

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
        self.chains: dict[Key, dict[UUID, brooq.Job]] = {}
        """What its handlers chained, by attempt and by the ids that the jobs had at first."""
        self.effects: set[Key] = set()
        """The attempts that wrote to ``probe``."""
        self.tried: defaultdict[Key, set[JobState]] = defaultdict(set)
        """What may have been written about an attempt, though nobody answered."""
        self.doubted: defaultdict[Key, set[JobState]] = defaultdict(set)
        """The same, as far as the worker knows: it takes a refusal of one outcome for doubt about all."""
        self.lost_at = 0.0
        """When it last claimed without an answer, by its own clock."""
        self.dropped: set[Key] = set()
        """Attempts whose leases it left to themselves, or whose claims it never heard of."""
        self.counted = 0
        """How many entries of its ledger have been looked at."""
        self.act = Act.RETURN
        self.chained_key: str | None = None
        """The key of the second job that a handler chains."""
        self._stage = stage
        sources = Sources(stage.engine, stage.session, None)
        handlers = {topic: self._handler(topic) for topic in topics}
        self.worker = engines.Worker(Setup(sources, CONFIG, handlers, stage.metrics))

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def executor(self) -> Stepwise:
        assert isinstance(self.worker._executor, Stepwise)
        return self.worker._executor

    @property
    def ledger(self) -> Ledger:
        assert isinstance(self.worker._desk.journal, Ledger)
        return self.worker._desk.journal

    @property
    def wires(self) -> Sequence[Wire]:
        """
        The pump's and the heartbeat's connection.
        """
        pump, heartbeat = self.worker._lines.pumps[0], self.worker._lines.heartbeat
        assert isinstance(pump, Wire)
        assert isinstance(heartbeat, Wire)
        return pump, heartbeat

    def known(self) -> dict[Key, Attempt]:
        """
        The attempts whose leases it believes to hold.
        """
        known = {key_of(attempt): attempt for attempt in self.worker._desk.in_flight.all()}
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

    def pump(self, fault: Fault | None = None, after: int = 0) -> bool:
        """
        Let the pump make a round, and note what it can't know afterwards.
        """
        wire, began = self.wires[0], self._stage.clock()
        outcomes = {key: attempt.outcome for key, attempt in self.known().items() if attempt.outcome}
        if any(outcome.result == UNSTORABLE for outcome in outcomes.values()):
            for key, outcome in outcomes.items():
                self.doubted[key].add(outcome.state)
        with wire.losing(fault, after):
            answered = self.round("pump")
        for key in zip(wire.lost.get("outcome_id", ()), wire.lost.get("outcome_claimed_at", ()), strict=True):
            self.tried[key].add(outcomes[key].state)
        if "want" in wire.lost:
            self.lost_at = began
        return answered

    def run(self, attempt: Attempt, act: Act) -> None:
        """
        Let a handler that has begun do something, and end.
        """
        self.act = act
        self.executor.step(attempt)
        if act is Act.UNSTORABLE and attempt.outcome == Outcome(Event.DONE):
            attempt.outcome = Outcome(Event.DONE, result=UNSTORABLE)

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
        self.executor.stop_admitting()
        self.worker._crew.stop_claiming()
        self.worker._requeue_waiting()
        self.executor.interrupt()
        for attempt in self.executor.running() if obeyed else ():
            self.run(attempt, Act.OBEY)
        self.dropped |= {key_of(attempt) for attempt in self.executor.running()}
        self.worker._abandon()
        for _ in range(3):
            self.pump()

    def close(self) -> None:
        for connection in self.worker._lines.all:
            connection.close()

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
            self.chains[key] = {job.id: job for job in jobs}
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
