"""
The protocol as a whole: workers, producers and strangers in any order over one PostgreSQL, answers lost on the way,
and after every step all that the queue promises about its jobs.

The model keeps no states of its own. It knows what was committed before a step, says which moves the step may make,
and compares that with what a trigger saw. ``BROOQ_MODEL_EXAMPLES=2000`` runs so many histories, new ones each time;
by default a small number, the same ones in every run.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as explore
from sqlalchemy import URL, Connection, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import CLAIMABLE, MOVES, TERMINAL, Event, JobState, Outcome
from sqlalchemy_brooq.worker.attempt import Attempt, Key
from sqlalchemy_brooq.worker.port import Fate, Settlement
from sqlalchemy_brooq.worker.pump import SEARCH
from sqlalchemy_brooq.worker.store import REAP, ReaperStore
from tests.protocol import (
    GUARD,
    GUARDED,
    LEASE,
    MAX_ATTEMPTS,
    PLAIN,
    TOPICS,
    TRANSACTIONAL,
    Act,
    AnswerLost,
    Bare,
    Fault,
    Kind,
    Move,
    Pending,
    Pilot,
    Row,
    Scene,
    Stage,
)

EXAMPLES: Final = os.environ.get("BROOQ_MODEL_EXAMPLES")
SETTINGS: Final = settings(
    max_examples=int(EXAMPLES or 100),
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

#: What an event may change of a row, beside its state and ``updated_at``.
CHANGES: Final[Mapping[Event, frozenset[str]]] = {
    Event.CLAIMED: frozenset({"attempts", "claimed_at", "locked_by", "locked_until"}),
    Event.DONE: frozenset({"result"}),
    Event.FAILED: frozenset({"attempts", "available_at", "locked_by", "locked_until", "last_error"}),
    Event.DEAD: frozenset({"last_error"}),
    Event.CANCELED: frozenset({"last_error"}),
    Event.REQUEUED: frozenset({"attempts", "requeues", "available_at", "locked_by", "locked_until"}),
}
RELEASED: Final = Outcome(Event.REQUEUED, refund=True)
CANCELED: Final = Outcome(Event.CANCELED)
OUTCOMES: Final = {
    "done": Outcome(Event.DONE),
    "done with a result": Outcome(Event.DONE, result='{"n": 1}'),
    "failed": Outcome(Event.FAILED, error="E: failed"),
    "preserved": Outcome(Event.FAILED, error="E: preserved", refund=True),
    "dead": Outcome(Event.DEAD, error="E: dead"),
    "canceled": Outcome(Event.CANCELED, error="E: canceled"),
    "requeued": RELEASED,
}


class Door(Enum):
    """
    The ways in.
    """

    ADD = auto()
    ENQUEUE = auto()
    ENQUEUE_MANY = auto()
    CONNECTION = auto()
    SQL = auto()


class Operation(Enum):
    """
    What is done to a job from outside.
    """

    CANCEL = auto()
    CANCEL_ON_A_CONNECTION = auto()
    CANCEL_BY_SQL = auto()
    REPLAY = auto()
    DELETE = auto()


class Stranger(Enum):
    """
    Who holds rows in an open transaction.
    """

    LOCK = auto()
    CANCEL = auto()
    REAP = auto()


class End(Enum):
    """
    How a whole worker ends.
    """

    STOPPED = auto()
    STOPPED_UNHEARD = auto()
    """Its handlers ignore it."""
    KILLED = auto()


@dataclass
class Account:
    """
    What has happened to one job.
    """

    claims: int = 0
    refunds: int = 0
    reaps: int = 0


# -- what holds for each move, and for each row


def check_move(move: Move) -> None:
    """
    A move leaves what it may leave, and changes what it may change.
    """
    old, new = move.old, move.new
    if move.kind is Kind.DELETE:
        assert old.state in TERMINAL
        return
    if move.kind is Kind.INSERT:
        assert (new.state, new.attempts, new.requeues) == (JobState.PENDING, 0, 0)
        assert not any((new.claimed_at, new.locked_by, new.locked_until, new.last_error, new.result))
        return
    assert new.updated_at == move.at
    if move.kind is Kind.RENEWAL:
        assert move.changed() <= {"locked_until", "updated_at"}
        assert old.state == JobState.PROCESSING
        assert old.locked_until >= move.at  # a lease that has run out stays so
        assert new.locked_until == move.at + LEASE
        return
    leaves, _ = MOVES[move.event]
    assert old.state in leaves
    assert move.changed() <= CHANGES[move.event] | {"state", "updated_at"}


def check_claim(move: Move) -> None:
    old, new = move.old, move.new
    assert new.attempts == old.attempts + 1
    assert old.available_at <= move.at <= new.claimed_at
    assert old.claimed_at is None or old.claimed_at < new.claimed_at
    assert new.locked_until == move.at + LEASE


def check_outcome(move: Move, outcome: Outcome) -> None:
    """
    A move wrote just this outcome.
    """
    old, new = move.old, move.new
    assert new.state == outcome.state
    assert new.attempts == max(old.attempts - outcome.refund, 0)
    assert new.requeues == old.requeues
    fails = outcome.event is Event.FAILED
    assert new.available_at == (move.at + outcome.delay if fails else old.available_at)
    assert new.last_error == (outcome.error or old.last_error)
    assert new.result == ({"n": 1} if outcome.result else old.result)


def check_reap(move: Move) -> None:
    """
    An expiry is counted; where that would exceed the topic's guard, it is recorded as the failure.
    """
    old, new = move.old, move.new
    assert old.locked_until < move.at
    assert new.attempts == old.attempts
    if new.state == JobState.DEAD:
        assert old.requeues == new.requeues == GUARD[old.topic]
        assert new.last_error == f"lease expired {old.requeues + 1} times"
    else:
        assert new.requeues == old.requeues + 1
        assert new.available_at == move.at


def check_row(row: Row) -> None:
    """
    A row tells one story, whatever happened to it.
    """
    lease = (row.locked_by, row.locked_until, row.claimed_at)
    assert 0 <= row.requeues <= row.attempts
    match row.state:
        case JobState.PROCESSING:
            assert None not in lease
            assert row.attempts >= 1
        case JobState.PENDING:
            assert lease[:2] == (None, None)
        case JobState.FAILED:
            assert lease[:2] == (None, None)
            assert row.claimed_at
            assert row.last_error
        case JobState.DONE:
            assert None not in lease  # kept as a trace
            assert row.attempts >= 1
        case JobState.DEAD:
            assert row.last_error


def check_choice(taken: Collection[Row], ready: Collection[Row], want: int) -> None:
    """
    A claim takes as many as it can, higher priorities first, and of one topic and priority the oldest (invariant 10).
    """
    assert len(taken) == min(want, len(ready))
    left = [row for row in ready if row.id not in {one.id for one in taken}]
    if taken and left:
        assert min(row.priority for row in taken) >= max(row.priority for row in left)
    for row in left:
        same = [one for one in taken if (one.topic, one.priority) == (row.topic, row.priority)]
        assert all((one.available_at, one.id) < (row.available_at, row.id) for one in same)


def running_order(row: Any) -> tuple[int, datetime, UUID]:
    return -row.priority, row.available_at, row.id


def check_answer(claims: Sequence[Claim], moves: Sequence[Move], worker: str) -> None:
    """
    The worker was told what it claimed, all of it, in the order in which it is to run.
    """
    rows = {move.id: move.new for move in moves}
    assert [claim.id for claim in claims] == [row.id for row in sorted(rows.values(), key=running_order)]
    for claim in claims:
        row = rows[claim.id]
        assert claim.attempt == row.attempts
        assert claim.lease == (worker, row.locked_until) == (row.locked_by, row.locked_until)
        for name in ("topic", "payload", "requeues", "priority", "created_at", "available_at", "claimed_at"):
            assert getattr(claim, name) == getattr(row, name)


def verdict(act: Act, claim: Claim) -> tuple[Event, bool]:
    """
    Return what becomes of an attempt whose handler acts so, and whether its charge is given back.
    """
    match act:
        case Act.PRESERVE:
            return Event.FAILED, True
        case Act.CANCEL:
            return Event.CANCELED, False
        case Act.OBEY:
            return Event.REQUEUED, True
        case Act.RETURN | Act.CHAIN | Act.UNSTORABLE:
            return Event.DONE, False
    last = claim.attempt - claim.requeues >= MAX_ATTEMPTS
    return Event.DEAD if last else Event.FAILED, False


# -- what may be done

WORKER = st.sampled_from([0, 1])
PICK = st.integers(0, 9)
PICKS = st.lists(PICK, max_size=4)
COMMIT = st.sampled_from([True, True, True, False])
FAULT = st.sampled_from([None, *Fault])
JOB = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from([None, None, "k1", "k2"]),
    st.sampled_from([0, 0, -2, 1, 2]),
    st.sampled_from([timedelta(0), timedelta(0), timedelta(hours=1)]),
)
JOBS = st.lists(JOB, min_size=1, max_size=4)
Spec = tuple[str, str | None, int, timedelta]
#: Of which claim (of the worker's own that are alive, or of all there ever were), and what is to be written.
SETTLES = st.lists(st.tuples(st.booleans(), PICK, st.sampled_from([*OUTCOMES])), max_size=4)
#: Which of the handlers that run, what it does, and what happens to its commit.
ACTS = st.lists(
    st.tuples(
        PICK,
        st.sampled_from([act for act in Act if act is not Act.OBEY]),
        st.sampled_from([None, None, Fault.BEFORE, Fault.AFTER]),
    ),
    min_size=1,
    max_size=4,
)
Acting = tuple[int, Act, Fault | None]
SERVED: Final = (TOPICS, (PLAIN, GUARDED))
"""What the two whole workers serve."""


class Protocol(RuleBasedStateMachine):
    """
    Two whole workers, two that are nothing but their statements, producers, strangers, and time.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        stage.clear()
        self.scene, _ = stage.look()
        self.pilots = [Pilot(stage, topics) for topics in SERVED]
        self.past: list[Pilot] = []
        self.bares = [Bare(stage, f"bare{n}") for n in range(2)]
        self.claims: list[Claim] = []
        """All that anybody has got, the lost ones too."""
        self.accounts: defaultdict[UUID, Account] = defaultdict(Account)
        self.endings: dict[Key, JobState] = {}
        """The states in which attempts left their jobs."""
        self.gone: dict[UUID, Row] = {}

    # -- looking, and comparing with what was expected

    def look(self) -> dict[Kind, list[Move]]:
        """
        Find out what has happened since the last look, and check each move by itself.
        """
        self.scene, moves = self.stage.look()
        by_kind: dict[Kind, list[Move]] = {kind: [] for kind in Kind}
        for move in moves:
            check_move(move)
            by_kind[move.kind].append(move)
        for move in by_kind[Kind.DELETE]:
            self.gone[move.id] = move.old
        return by_kind

    def expect(
        self,
        *,
        ends: Mapping[UUID, Outcome] | None = None,
        claimer: str | None = None,
        reaps: Collection[UUID] = (),
        **others: Collection[UUID],
    ) -> dict[Kind, list[Move]]:
        """
        Look, and find just these moves; how many claims there may be, is the caller's to say.
        """
        moves = self.look()
        assert {move.id for move in moves[Kind.END]} == set(ends or {})
        assert {move.id for move in moves[Kind.REAP]} == set(reaps)
        for kind in (Kind.INSERT, Kind.DELETE, Kind.RENEWAL):
            assert {move.id for move in moves[kind]} == set(others.get(kind.name.lower(), ()))
        self.account(moves, lambda move: (ends or {})[move.id], claimer)
        return moves

    def account(
        self, moves: Mapping[Kind, Sequence[Move]], outcome: Callable[[Move], Outcome | None], claimer: str | None
    ) -> None:
        """
        Check claims, ends and reaps, and write them down.
        """
        for move in moves[Kind.CLAIM]:
            check_claim(move)
            assert move.new.locked_by == claimer
            self.accounts[move.id].claims += 1
        for move in moves[Kind.REAP]:
            check_reap(move)
            self.accounts[move.id].reaps += move.new.state != JobState.DEAD
            self.end(move)
        for move in moves[Kind.END]:
            written = outcome(move)
            assert written is not None
            check_outcome(move, written)
            self.accounts[move.id].refunds += written.refund
            self.end(move)

    def end(self, move: Move) -> None:
        if move.old.state == JobState.PROCESSING:
            assert move.key not in self.endings  # the outcome is written once
            self.endings[move.key] = JobState(move.new.state)

    def ready(self, topics: Collection[str]) -> list[Row]:
        """
        Return the jobs that a claim of *topics* can take.
        """
        return [
            row
            for row in self.scene.rows.values()
            if row.state in CLAIMABLE
            and row.topic in topics
            and row.available_at <= self.scene.now
            and self.scene.is_free(row.id)
        ]

    def pick(self, picks: Iterable[int], states: Collection[JobState] = frozenset(JobState)) -> list[Row]:
        """
        Return jobs in one of *states* that nobody has locked; the first ones are those that are held.
        """
        rows = [row for row in self.scene.rows.values() if row.state in states and self.scene.is_free(row.id)]
        rows.sort(key=lambda row: (row.state != JobState.PROCESSING, row.id))
        return list({n % len(rows): rows[n % len(rows)] for n in picks}.values()) if rows else []

    # -- producers

    @initialize(specs=st.lists(JOB, min_size=4, max_size=10))
    def begin(self, specs: list[Spec]) -> None:
        self.enqueue(Door.ADD, specs, commit=True)

    @rule(door=st.sampled_from(Door), specs=JOBS, commit=COMMIT)
    def enqueue(self, door: Door, specs: list[Spec], commit: bool) -> None:
        specs = [self.unlocked(spec) for spec in specs]
        taken = {(row.topic, row.idempotency_key): row.id for row in self.scene.rows.values()}
        with Session(self.stage.engine) as session:
            answers = handed_in(door, session, specs)
            session.commit() if commit else session.rollback()

        created = {}
        for spec, answer in zip(specs, answers, strict=True):
            topic, key, *_ = spec
            there = taken.get((topic, key)) if key else None
            assert answer.created == (there is None)
            assert there is None or answer.id == there
            if key:
                taken[topic, key] = answer.id
            if answer.created:
                created[answer.id] = spec
        moves = self.expect(insert=created if commit else ())
        for move in moves[Kind.INSERT]:
            topic, key, priority, delay = created[move.id]
            assert (move.new.topic, move.new.idempotency_key, move.new.priority) == (topic, key, priority)
            assert move.new.available_at == move.at + delay

    def unlocked(self, spec: Spec) -> Spec:
        """
        Return *spec* without its key if somebody is changing the row that has it: that is waited for.
        """
        topic, key, priority, delay = spec
        return topic, None if self.is_changing(topic, key) else key, priority, delay

    def is_changing(self, topic: str, key: str | None) -> bool:
        rows = self.scene.rows
        return any((rows[id_].topic, rows[id_].idempotency_key) == (topic, key) for id_ in self.scene.locked)

    @rule(operation=st.sampled_from(Operation), pick=PICK, commit=COMMIT)
    def operate(self, operation: Operation, pick: int, commit: bool) -> None:
        for row in self.pick([pick]):
            with Session(self.stage.engine) as session:
                expected = self.operated(operation, session, row)
                session.commit() if commit else session.rollback()
            self.expect(**expected if commit else {})

    def operated(self, operation: Operation, session: Session, row: Row) -> dict[str, Any]:
        """
        Do something to a job, and return the moves to expect.
        """
        match operation:
            case Operation.DELETE:
                delete = text("DELETE FROM job WHERE id = :id AND state IN ('done','dead','canceled') RETURNING id")
                return {"delete": session.scalars(delete, {"id": row.id}).all()}
            case Operation.REPLAY:
                return {"insert": self.replayed(session, row)}
        canceled = called_off(operation, session, row.id)
        assert canceled == (row.state not in TERMINAL)
        return {"ends": {row.id: CANCELED} if canceled else {}}

    def replayed(self, session: Session, row: Row) -> list[UUID]:
        key = f"replay:{row.id}"
        if self.is_changing(row.topic, key):
            return []
        if row.state not in TERMINAL:
            with pytest.raises(brooq.InvalidJob):
                brooq.replay(session, row.id)
            return []
        there = [one.id for one in self.scene.rows.values() if (one.topic, one.idempotency_key) == (row.topic, key)]
        answer = brooq.replay(session, row.id)
        assert answer.created == (not there)
        assert answer.created or [answer.id] == there
        return [answer.id] if answer.created else []

    # -- workers that are nothing but their statements

    @rule(worker=WORKER, want=st.integers(0, 4), settles=SETTLES, fault=FAULT)
    def exchange(self, worker: int, want: int, settles: list[tuple[bool, int, str]], fault: Fault | None) -> None:
        """
        Settle any claims that anybody ever had, with any outcomes, as one of two workers; and claim.
        """
        bare = self.bares[worker]
        settlements = [Settlement(claim, OUTCOMES[name]) for claim, name in self.chosen(bare, settles)]
        ends = {
            claim.id: outcome
            for claim, outcome in settlements
            if self.scene.lives(claim, bare.name) and self.scene.is_free(claim.id)
        }
        scene, ready = self.scene, self.ready(TOPICS)
        if not (want or settlements):
            return
        with bare.wire.losing(fault):
            try:
                answer = bare.store.exchange(settlements, bare.turns.request(want) if want else None)
            except AnswerLost:
                self.answer_lost(bare.wire, fault, ends, bare.name)
                return
        claims = [one.claim for one in answer.claimed]
        bare.turns.learn((claim.priority, claim.topic) for claim in claims)
        moves = self.expect(ends=ends, claimer=bare.name)
        check_choice([move.old for move in moves[Kind.CLAIM]], ready, want)
        check_answer(claims, moves[Kind.CLAIM], bare.name)
        self.claims += claims
        unwritten = [settlements[place].claim for place in answer.unwritten]
        assert {claim.id for claim, _ in settlements if claim not in unwritten} == ends.keys()
        assert bare.store.fates(unwritten) == [fate(claim, scene, self.scene, bare.name) for claim in unwritten]

    def chosen(self, bare: Bare, choices: Iterable[tuple[bool, int, Any]]) -> list[tuple[Claim, Any]]:
        """
        Return different claims, each with what was chosen for it, in the order in which rows are locked.
        """
        alive = [claim for claim in self.claims if self.scene.lives(claim, bare.name)]
        found: dict[Claim, Any] = {}
        for own, pick, choice in choices:
            claims = alive if own else self.claims
            if claims:
                found[claims[-1 - pick % len(claims)]] = choice  # the younger ones first
        return sorted(found.items(), key=lambda pair: (pair[0].id, pair[0].claimed_at))

    def answer_lost(self, wire: Any, fault: Fault | None, ends: Mapping[UUID, Outcome], claimer: str) -> None:
        """
        Check what a statement did whose answer its worker didn't get.
        """
        if wire.late is not None:
            self.stage.open.append(Pending(wire.late, lambda move: ends.get(move.id), claimer))
        moves = self.expect(ends=ends if fault is Fault.AFTER else {}, claimer=claimer)
        assert fault is Fault.AFTER or not moves[Kind.CLAIM]

    @rule(worker=WORKER, choices=st.lists(st.tuples(st.booleans(), PICK, st.none()), min_size=1, max_size=4))
    @precondition(lambda self: self.claims)
    def renew(self, worker: int, choices: list[tuple[bool, int, None]]) -> None:
        bare, scene = self.bares[worker], self.scene
        claims = [claim for claim, _ in self.chosen(bare, choices)]
        held = [scene.lives(claim, bare.name) and scene.rows[claim.id].locked_until >= scene.now for claim in claims]
        due = [is_held and scene.is_free(claim.id) for claim, is_held in zip(claims, held, strict=True)]

        answer = bare.beat.renew(claims)

        assert bare.beat.held(claims) == held
        moves = self.expect(renewal={claim.id for claim, is_due in zip(claims, due, strict=True) if is_due})
        until = {move.id: move.new.locked_until for move in moves[Kind.RENEWAL]}
        assert answer == [until[claim.id] if is_due else None for claim, is_due in zip(claims, due, strict=True)]

    @rule(worker=WORKER, known=st.lists(st.tuples(st.just(True), PICK, st.none()), max_size=4))
    def release(self, worker: int, known: list[tuple[bool, int, None]]) -> None:
        """
        Give back what a worker holds, but for the claims that it knows.
        """
        bare = self.bares[worker]
        claims = [claim for claim, _ in self.chosen(bare, known)]
        keys = {(claim.id, claim.claimed_at) for claim in claims}
        ends = {
            row.id: RELEASED
            for row in self.scene.rows.values()
            if row.state == JobState.PROCESSING
            and row.locked_by == bare.name
            and (row.id, row.claimed_at) not in keys
            and self.scene.is_free(row.id)
        }
        assert {job.id for job in bare.store.release(claims)} == ends.keys()
        self.expect(ends=ends)

    # -- reapers

    @rule(who=st.sampled_from([0, 1, None]), guarded=st.booleans(), batch=st.integers(1, 5))
    def reap(self, who: int | None, guarded: bool, batch: int) -> None:
        """
        Let the reaper of a whole worker make a round, or one by itself.
        """
        if who is not None:
            pilot, expired = self.pilots[who], self.expired()
            assert pilot.round("reaper")
            self.check_reaped(None, expired, pilot.guards)
            return
        expired, guards = self.expired()[:batch], GUARD if guarded else {}
        jobs = ReaperStore(self.stage.engine).reap(guards, batch)
        self.check_reaped({job.id: job.state for job in jobs}, expired, guards)

    def expired(self) -> list[Row]:
        rows = [
            row
            for row in self.scene.rows.values()
            if row.state == JobState.PROCESSING and row.locked_until < self.scene.now and self.scene.is_free(row.id)
        ]
        return sorted(rows, key=lambda row: (row.locked_until, row.id))

    def check_reaped(
        self, answer: Mapping[UUID, str] | None, expired: Sequence[Row], guards: Mapping[str, int]
    ) -> None:
        moves = self.expect(reaps=[row.id for row in expired])
        dead = {row.id for row in expired if row.topic in guards and row.requeues >= guards[row.topic]}
        found = {move.id: move.new.state for move in moves[Kind.REAP]}
        assert {id_ for id_, state in found.items() if state == JobState.DEAD} == dead
        assert answer is None or answer == found

    # -- whole workers

    @rule(worker=WORKER, acts=ACTS, settles=st.booleans())
    def work(self, worker: int, acts: list[Acting], settles: bool) -> None:
        """
        Let a whole worker claim, let some of its handlers end, and let it settle, or not yet.
        """
        self.pump(worker, hint=True)
        for act in acts:
            self.handle(worker, *act)
        if settles:
            self.pump(worker, hint=False)

    @rule(worker=WORKER, acts=ACTS, hint=st.booleans(), fault=FAULT, after=st.sampled_from([0, 0, 1]))
    def work_in_trouble(self, worker: int, acts: list[Acting], hint: bool, fault: Fault | None, after: int) -> None:
        """
        Let some handlers end, and lose the answer to the pump's next statement, or to the one after it.
        """
        for act in acts:
            self.handle(worker, *act)
        self.pump(worker, hint=hint, fault=fault, after=after)

    def pump(self, worker: int, *, hint: bool, fault: Fault | None = None, after: int = 0) -> None:
        """
        Let a pump settle what its handlers have left, and claim for its free slots.
        """
        pilot, scene = self.pilots[worker], self.scene
        known, free, ready = pilot.known(), pilot.executor.free(), self.ready(pilot.topics)
        decided = {key: attempt.outcome for key, attempt in known.items() if attempt.outcome}
        spoiled = {attempt for attempt in known.values() if attempt.outcome and attempt.outcome.result == "{"}
        if hint:
            pilot.worker._pump.hint()
        pilot.executor.handed = ()
        with pilot.wires[0].losing(fault, after):
            answered = pilot.round("pump")

        if pilot.wires[0].late is not None and not answered:
            self.stage.open.append(Pending(pilot.wires[0].late, pilot.outcome, pilot.name, holder=pilot))
        moves = self.worker_moves(pilot, known)
        if not answered:
            return
        self.check_settled(pilot, scene, {known[key] for key in decided} - spoiled, moves[Kind.END])
        back = [move.new for move in moves[Kind.END] if move.event is Event.REQUEUED and move.key not in known]
        back = [row for row in back if row.topic in pilot.topics]
        if moves[Kind.CLAIM] or (hint and not spoiled):
            check_choice([move.old for move in moves[Kind.CLAIM]], [*ready, *back], free)
        claims = [attempt.claim for attempt in pilot.executor.handed]
        check_answer(claims, moves[Kind.CLAIM], pilot.name)
        self.claims += claims

    def worker_moves(self, pilot: Pilot, known: Collection[Key]) -> dict[Kind, list[Move]]:
        """
        Look at what a whole worker did: what it claimed, decided, or gave back because it had not heard of it.
        """
        moves = self.look()
        assert not any(moves[kind] for kind in (Kind.INSERT, Kind.DELETE, Kind.RENEWAL, Kind.REAP))
        self.account(moves, pilot.outcome, pilot.name)
        heard = pilot.known()
        pilot.dropped |= {move.key for move in moves[Kind.CLAIM]} - heard.keys()
        for move in moves[Kind.END]:
            attempt = pilot.attempts.get(move.key)
            assert move.key not in known or (attempt and attempt.outcome)  # nothing is taken from a handler that runs
        return moves

    def check_settled(self, pilot: Pilot, scene: Scene, attempts: Collection[Attempt], ends: Sequence[Move]) -> None:
        """
        What could be written was, what was lost is forgotten, and what somebody else has locked is kept.
        """
        written, known = {move.key for move in ends}, pilot.known()
        for attempt in attempts:
            lives, is_free = scene.lives(attempt.claim, pilot.name), scene.is_free(attempt.claim.id)
            assert (attempt.key in written) == (lives and is_free)
            assert (attempt.key in known) == (lives and not is_free)

    def handle(self, worker: int, pick: int, act: Act, commits: Fault | None) -> None:
        """
        Let a handler run to its end; where it has effects, that settles the attempt as well.
        """
        pilot = self.pilots[worker]
        running: list[Attempt] = pilot.executor.running()
        if not running:
            return
        attempt = running[pick % len(running)]
        in_time = attempt.key in pilot.known()
        can_write = self.scene.lives(attempt.claim, pilot.name) and self.scene.is_free(attempt.claim.id)
        if not self.scene.is_free(attempt.claim.id):
            attempt.lease_end = 0.0  # or it would wait for whoever has locked the row
        self.stage.commits = commits
        pilot.chained_key = None if self.is_changing(TRANSACTIONAL, "chained") else "chained"
        pilot.run(attempt, act)

        event, refund = verdict(act, attempt.claim)
        has_effects = event is Event.DONE and (act is Act.CHAIN or attempt.claim.topic == TRANSACTIONAL)
        if has_effects and in_time:
            self.check_effects(pilot, attempt, can_write)
        else:
            self.expect()
            assert (attempt.outcome is not None) == in_time
        if attempt.outcome and not has_effects:
            assert (attempt.outcome.event, attempt.outcome.refund) == (event, refund)

    def check_effects(self, pilot: Pilot, attempt: Attempt, can_write: bool) -> None:
        """
        The effects and the outcome were committed together, or neither.
        """
        committed = can_write and self.stage.commits is not Fault.BEFORE
        chained = pilot.chains.get(attempt.key, []) if committed else []
        rows = self.scene.rows.values()
        taken = {(row.topic, row.idempotency_key) for row in rows if row.idempotency_key}
        created = {job.id for job in chained if (job.topic, job.idempotency_key) not in taken}
        moves = self.expect(ends={attempt.claim.id: Outcome(Event.DONE)} if committed else {}, insert=created)
        assert all(move.new.meta == {"chained_by": str(attempt.claim.id)} for move in moves[Kind.INSERT])
        answered = can_write and self.stage.commits is None
        assert (attempt.key in pilot.known()) == (can_write and not answered)
        if can_write and not answered:
            assert attempt.outcome
            assert attempt.outcome.event in (Event.FAILED, Event.DEAD)
        elif not can_write:
            pilot.dropped.add(attempt.key)

    @rule(worker=WORKER, fault=st.sampled_from([None, None, Fault.BEFORE, Fault.AFTER]))
    def beat(self, worker: int, fault: Fault | None) -> None:
        pilot, scene = self.pilots[worker], self.scene
        known = pilot.known()
        due, lost = set(), set()
        for key, attempt in known.items():
            if not scene.lives(attempt.claim, pilot.name) or scene.rows[key[0]].locked_until < scene.now:
                lost.add(key)
            elif scene.is_free(key[0]):
                due.add(key[0])
        with pilot.wires[1].losing(fault):
            answered = pilot.round("heartbeat")

        moves = self.expect(renewal=due if known and fault is not Fault.BEFORE else ())
        if not answered:
            return
        for move in moves[Kind.RENEWAL]:
            assert known[move.key].claim.lease.until == move.new.locked_until
        forgotten = known.keys() - pilot.known().keys()
        assert forgotten == {key for key in lost if known[key].outcome is None}
        assert all(known[key].claim.interrupted for key in forgotten)

    @rule(worker=WORKER, end=st.sampled_from(End))
    def leave(self, worker: int, end: End) -> None:
        """
        End a worker, and start another one in its place.
        """
        if end is End.KILLED:
            self.expect()
        elif not self.stage.open:
            self.stop(worker, obeyed=end is End.STOPPED)
        self.replace(worker)

    def stop(self, worker: int, *, obeyed: bool) -> None:
        """
        Shut a worker down: what it knew of is settled, but for handlers that ignore it, which keep their leases.
        """
        pilot = self.pilots[worker]
        known, running = pilot.known(), pilot.executor.running()
        deaf = {attempt.key for attempt in running if attempt.key in known and not obeyed}
        pilot.stop(obeyed=obeyed)
        moves = self.worker_moves(pilot, deaf)
        assert not moves[Kind.CLAIM]
        assert not pilot.known()
        for key, attempt in known.items():
            assert self.scene.lives(attempt.claim, pilot.name) == (key in deaf and key not in self.endings)

    def replace(self, worker: int) -> None:
        self.past.append(self.pilots[worker])
        self.pilots[worker].close()
        self.pilots[worker] = Pilot(self.stage, SERVED[worker])

    # -- strangers, and time

    @rule(stranger=st.sampled_from(Stranger), picks=st.lists(PICK, min_size=1, max_size=3))
    @precondition(lambda self: len(self.stage.open) < 3)
    def hold(self, stranger: Stranger, picks: list[int]) -> None:
        """
        Begin a transaction that locks rows, and leave it open.
        """
        rows = self.pick(picks, states=frozenset(JobState) - TERMINAL)
        connection = self.stage.engine.connect()
        connection.begin()
        self.stage.open.append(held_by(stranger, connection, rows))
        self.expect()

    @rule(pick=PICK, commit=COMMIT)
    @precondition(lambda self: self.stage.open)
    def end_transaction(self, pick: int, commit: bool) -> None:
        pending = self.stage.open.pop(pick % len(self.stage.open))
        pending.end(commit=commit)
        moves = self.look()
        assert commit or not any(moves.values())
        assert {move.id for move in moves[Kind.REAP]} == (pending.reaps if commit else set())
        self.account(moves, pending.ends, pending.claimer)
        if pending.holder is not None:
            pending.holder.dropped |= {move.key for move in moves[Kind.CLAIM]}

    @rule(leases=st.one_of(st.none(), PICKS), scheduled=PICKS, a_while=st.booleans())
    def time_passes(self, leases: list[int] | None, scheduled: list[int], a_while: bool) -> None:
        """
        Let leases run out, all of them or some; let jobs fall due; let the workers' own clocks go on.
        """
        expired = self.pick(range(50) if leases is None else leases, {JobState.PROCESSING})
        past = "UPDATE job SET locked_until = now() - interval '1 s' WHERE id = ANY(%s)"
        self.stage.edit(past, [row.id for row in expired])
        due = "UPDATE job SET available_at = now() WHERE id = ANY(%s) AND available_at > now()"
        self.stage.edit(due, [row.id for row in self.pick(scheduled, CLAIMABLE)])
        self.stage.ahead += SEARCH / 4 if a_while else 0.0
        self.expect()

    # -- what holds after every step

    @invariant()
    def every_row_tells_one_story(self) -> None:
        keys = Counter((row.topic, row.idempotency_key) for row in self.scene.rows.values() if row.idempotency_key)
        assert not [key for key, count in keys.items() if count > 1]
        for id_, row in self.scene.rows.items():
            check_row(row)
            account = self.accounts[id_]
            assert (row.attempts, row.requeues) == (account.claims - account.refunds, account.reaps)

    @invariant()
    def effects_are_there_if_and_only_if_their_attempt_is_done(self) -> None:
        pilots = [*self.pilots, *self.past]
        tried = {key for pilot in pilots for key in pilot.effects}
        done = {key for key in tried if self.endings.get(key) is JobState.DONE}
        assert Counter(self.scene.probes) == Counter(done)
        there = self.scene.rows.keys() | self.gone.keys()
        for pilot in pilots:
            for key, jobs in pilot.chains.items():
                is_done = self.endings.get(key) is JobState.DONE
                assert all((job.id in there) == is_done for job in jobs if job.created or not is_done)

    @invariant()
    def a_worker_knows_what_it_holds(self) -> None:
        for pilot in self.pilots:
            known = pilot.known().keys() | pilot.dropped
            for row in self.scene.rows.values():
                holds = row.state == JobState.PROCESSING and row.locked_by == pilot.name
                assert not holds or row.locked_until < self.scene.now or (row.id, row.claimed_at) in known

    @invariant()
    def every_attempt_is_counted_once_and_as_it_ended(self) -> None:
        for pilot in self.pilots:
            entries = {(claim.id, claim.claimed_at): outcome for claim, outcome in pilot.ledger.entries}
            assert len(entries) == len(pilot.ledger.entries)
            for key, outcome in entries.items():
                if outcome is not None:
                    assert self.endings[key] == outcome.state
                elif self.scene.lives(pilot.attempts[key].claim, pilot.name):
                    assert key in pilot.dropped or self.scene.rows[key[0]].locked_until < self.scene.now

    # -- the end

    def teardown(self) -> None:
        try:
            if sys.exception() is None:
                self.finish()
        finally:
            for pilot in self.pilots:
                pilot.close()
            for bare in self.bares:
                bare.wire.close()

    def finish(self) -> None:
        """
        Once nobody disturbs it any more, every job comes to its end.
        """
        while self.stage.open:
            self.end_transaction(0, commit=True)
        for worker in range(len(self.pilots)):
            self.stop(worker, obeyed=True)
        self.time_passes(None, [*range(len(self.scene.rows))], a_while=True)
        self.reap(None, guarded=True, batch=1_000)
        while ready := len(self.ready(TOPICS)):
            self.exchange(0, ready, [], None)
            self.exchange(0, 0, [(True, pick, "done") for pick in range(ready)], None)
        assert {row.state for row in self.scene.rows.values()} <= TERMINAL


def handed_in(door: Door, session: Session, specs: Sequence[Spec]) -> list[brooq.Enqueued]:
    """
    Hand jobs in by *door*, and return the answers.
    """
    jobs = [brooq.Job(topic, {"n": 1}, idempotency_key=k, priority=p, delay=d) for topic, k, p, d in specs]
    match door:
        case Door.ADD:
            session.add_all(jobs)
            session.flush()
            return [brooq.Enqueued(job.id, bool(job.created)) for job in jobs]
        case Door.ENQUEUE:
            return [brooq.enqueue(session, job) for job in jobs]
        case Door.ENQUEUE_MANY:
            return brooq.enqueue_many(session, jobs)
        case Door.CONNECTION:
            return brooq.enqueue_many(session.connection(), jobs)
        case Door.SQL:
            return [inserted(session, spec) for spec in specs]


def inserted(session: Session, spec: Spec) -> brooq.Enqueued:
    """
    Insert a job as any language could.
    """
    given = dict(zip(("topic", "key", "priority", "delay"), spec, strict=True))
    insert = text(
        "INSERT INTO job (topic, idempotency_key, priority, available_at) VALUES (:topic, :key, :priority,"
        " now() + :delay) ON CONFLICT (topic, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
        " RETURNING id"
    )
    if created := session.scalar(insert, given):
        return brooq.Enqueued(created, created=True)
    find = text("SELECT id FROM job WHERE topic = :topic AND idempotency_key = :key")
    return brooq.Enqueued(session.scalars(find, given).one(), created=False)


def called_off(operation: Operation, session: Session, job_id: UUID) -> bool:
    """
    Cancel a job in one of the ways, and return whether that did it.
    """
    if operation is Operation.CANCEL:
        return brooq.cancel(session, job_id)
    if operation is Operation.CANCEL_ON_A_CONNECTION:
        return brooq.cancel(session.connection(), job_id)
    statement = (
        "UPDATE job SET state = 'canceled', updated_at = now()"
        " WHERE id = :id AND state IN ('pending','failed','processing') RETURNING id"
    )
    return session.execute(text(statement), {"id": job_id}).one_or_none() is not None


def held_by(stranger: Stranger, connection: Connection, rows: Sequence[Row]) -> Pending:
    """
    Lock rows for a stranger, and return what its commit will bring.
    """
    ids = [row.id for row in rows]
    match stranger:
        case Stranger.LOCK:
            connection.execute(text("SELECT FROM job WHERE id = ANY(:ids) FOR UPDATE"), {"ids": ids})
        case Stranger.CANCEL:
            assert all(brooq.cancel(connection, id_) for id_ in ids)
            return Pending(connection, lambda move: CANCELED if move.id in ids else None)
        case Stranger.REAP:
            jobs = connection.execute(REAP, {"batch": 3, "guard_topic": [], "guard_limit": []}).all()
            return Pending(connection, reaps=frozenset(job.id for job in jobs))
    return Pending(connection)


def fate(claim: Claim, before: Scene, after: Scene, worker: str) -> Fate:
    """
    Return what a worker is to be told of an outcome that was not written.
    """
    row = after.rows.get(claim.id)
    same = row is not None and row.claimed_at == claim.claimed_at
    return Fate(before.lives(claim, worker), JobState(row.state) if row and same else None)


@pytest.mark.timeout(120 + 3 * SETTINGS.max_examples)
def test_the_promises_hold_in_any_order_of_events(
    database_url: URL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "sqlalchemy_brooq.worker")
    stage = Stage(database_url)
    stage.install(monkeypatch)
    try:
        explore(cast(Any, partial(Protocol, stage)), settings=SETTINGS)
    finally:
        stage.close()
