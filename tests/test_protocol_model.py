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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as explore
from sqlalchemy import URL, ColumnElement, and_, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements import exchange
from sqlalchemy_brooq.statements.fence import PROCESSING
from sqlalchemy_brooq.vocabulary import CLAIMABLE, TERMINAL, Event, JobState, Outcome
from sqlalchemy_brooq.worker import store
from sqlalchemy_brooq.worker.attempt import Attempt
from sqlalchemy_brooq.worker.port import Fate, Settlement
from sqlalchemy_brooq.worker.pump import SEARCH
from sqlalchemy_brooq.worker.store import ReaperStore
from tests.protocol.moves import Key, Kind, Move, Row, Scene, key_of
from tests.protocol.outsiders import CANCELED, Door, Operation, Spec, Stranger, called_off, handed_in, held_by
from tests.protocol.promises import Witness, check_answer, check_choice
from tests.protocol.stage import Pending, Stage
from tests.protocol.wires import AnswerLost, Fault, Wire
from tests.protocol.workers import (
    GUARD,
    GUARDED,
    LEASE,
    MAX_ATTEMPTS,
    PLAIN,
    RETENTION,
    TOPICS,
    TRANSACTIONAL,
    UNSTORABLE,
    Act,
    Bare,
    Pilot,
)
from tests.queues import on

EXAMPLES: Final = os.environ.get("BROOQ_MODEL_EXAMPLES")
SETTINGS: Final = settings(
    max_examples=int(EXAMPLES or 150),
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

RELEASED: Final = Outcome(Event.REQUEUED, refund=True)
OUTCOMES: Final = {
    "done": Outcome(Event.DONE),
    "done with a result": Outcome(Event.DONE, result='{"n": 1}'),
    "failed": Outcome(Event.FAILED, error="E: failed"),
    "preserved": Outcome(Event.FAILED, error="E: preserved", refund=True),
    "dead": Outcome(Event.DEAD, error="E: dead"),
    "canceled": Outcome(Event.CANCELED, error="E: canceled"),
    "requeued": RELEASED,
}


class Which(Enum):
    """
    Whose claims a worker without a memory takes for its own.
    """

    ALIVE = auto()
    """Its own."""
    STALE = auto()
    """Earlier ones, by anybody, of the jobs that it holds now."""
    OTHERS = auto()
    """What others hold now."""
    ANY = auto()
    """All that anybody was ever told of."""


class End(Enum):
    """
    How a whole worker ends.
    """

    STOPPED = auto()
    STOPPED_UNHEARD = auto()
    """Its handlers ignore it."""
    KILLED = auto()


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
ALL: Final = range(1_000)
LEASES = st.one_of(PICKS, st.just(ALL))
"""Those that run out."""
COMMIT = st.sampled_from([True, True, True, False])
FAULT = st.sampled_from([None, *Fault])
RARE_FAULT = st.sampled_from([None, None, None, None, None, *Fault])
CLEAR: Final = (Fault.BEFORE, Fault.AFTER)
SPEC = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from([None, None, "k1", "k2"]),
    st.sampled_from([0, 0, -2, 1, 2]),
    st.sampled_from([timedelta(0), timedelta(0), timedelta(hours=1)]),
)
SPECS = st.lists(SPEC, min_size=1, max_size=4)
WHICH = st.sampled_from(Which)
SETTLES = st.lists(st.tuples(WHICH, PICK, st.sampled_from([*OUTCOMES])), max_size=4)
"""Which claims, and what is to be written about them."""
CHOICES = st.lists(st.tuples(WHICH, PICK, st.none()), max_size=4)
ACTS = st.lists(
    st.tuples(
        PICK,
        st.sampled_from([act for act in Act if act is not Act.OBEY]),
        st.sampled_from([None, None, *CLEAR]),
    ),
    min_size=1,
    max_size=4,
)
"""Which of the handlers that run, what it does, and what happens to its commit."""
Acting = tuple[int, Act, Fault | None]
SERVED: Final = (TOPICS, (PLAIN, GUARDED))
"""What the two whole workers serve."""


class Protocol(Witness):
    """
    Two whole workers, two that are nothing but their statements, producers, strangers, and time.
    """

    def __init__(self, stage: Stage) -> None:
        stage.clear()
        super().__init__(stage, [Pilot(stage, topics) for topics in SERVED])
        self.bares = [Bare(stage, f"bare{n}") for n in range(2)]
        self.claims: list[Claim] = []
        """All that anybody was told of."""

    def pick(self, picks: Iterable[int], states: Collection[JobState] = frozenset(JobState)) -> list[Row]:
        """
        Return jobs in one of *states* that nobody has locked; the first ones are those that are held.
        """
        rows = [row for row in self.scene.rows.values() if row.state in states and self.scene.is_free(row.id)]
        rows.sort(key=lambda row: (row.state != JobState.PROCESSING, row.id))
        return list({n % len(rows): rows[n % len(rows)] for n in picks}.values()) if rows else []

    # -- producers

    @initialize(specs=st.lists(SPEC, min_size=4, max_size=10))
    def begin(self, specs: list[Spec]) -> None:
        self.enqueue(Door.ADD, specs, commit=True)

    @rule(door=st.sampled_from(Door), specs=SPECS, commit=COMMIT)
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

    @rule(operation=st.sampled_from(Operation), over=st.booleans(), pick=PICK, commit=COMMIT)
    def operate(self, operation: Operation, over: bool, pick: int, commit: bool) -> None:
        for row in self.pick([pick], TERMINAL if over else frozenset(JobState) - TERMINAL):
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

    @rule(worker=WORKER, want=st.integers(0, 4), settles=SETTLES, fault=RARE_FAULT)
    def exchange(self, worker: int, want: int, settles: list[tuple[Which, int, str]], fault: Fault | None) -> None:
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
        request = bare.turns.request(want) if want else None
        with bare.wire.losing(fault):
            try:
                answer = bare.store.exchange(settlements, request)
            except AnswerLost:
                self.answer_lost(bare.wire, fault, ends, bare.name)
                return
        claims = list(answer.claims)
        if request is not None:
            bare.turns.learn(request, claims)
        moves = self.expect(ends=ends, claimer=bare.name)
        check_choice([move.old for move in moves[Kind.CLAIM]], ready, want)
        check_answer(claims, moves[Kind.CLAIM], bare.name)
        self.claims += claims
        unwritten = [settlements[place].claim for place in answer.unwritten]
        assert {claim.id for claim, _ in settlements if claim not in unwritten} == ends.keys()
        assert bare.store.fates(unwritten) == [fate(claim, scene, self.scene, bare.name) for claim in unwritten]

    def chosen(self, bare: Bare, choices: Iterable[tuple[Which, int, Any]]) -> list[tuple[Claim, Any]]:
        """
        Return different claims, each with what was chosen for it, in the order in which rows are locked.
        """
        alive = [claim for claim in self.claims if self.scene.lives(claim, bare.name)]
        jobs = {claim.id for claim in alive}
        stale = [claim for claim in self.claims if claim.id in jobs and claim not in alive]
        others = [claim for claim in self.claims if self.scene.lives(claim, claim.lease.worker) and claim not in alive]
        from_which = {Which.ALIVE: alive, Which.STALE: stale, Which.OTHERS: others, Which.ANY: self.claims}
        found: dict[Claim, Any] = {}
        for which, pick, choice in choices:
            if claims := from_which[which]:
                found[claims[-1 - pick % len(claims)]] = choice  # the younger ones first
        return sorted(found.items(), key=lambda pair: (pair[0].id, pair[0].claimed_at))

    def answer_lost(self, wire: Wire, fault: Fault | None, ends: Mapping[UUID, Outcome], claimer: str) -> None:
        """
        Check what a statement did whose answer its worker didn't get.
        """
        if wire.late is not None:
            self.stage.open.append(Pending(wire.late, lambda move: ends.get(move.id), claimer))
        moves = self.expect(ends=ends if fault is Fault.AFTER else {}, claimer=claimer)
        assert fault is Fault.AFTER or not moves[Kind.CLAIM]

    @rule(worker=WORKER, choices=CHOICES, leases=LEASES, releases=st.booleans())
    def keep(self, worker: int, choices: list[tuple[Which, int, None]], leases: Iterable[int], releases: bool) -> None:
        """
        Renew some leases, after others have run out, and perhaps give back what the worker holds beside them.
        """
        self.run_out(leases)
        claims = [claim for claim, _ in self.chosen(self.bares[worker], choices)]
        self.renew(self.bares[worker], claims)
        if releases:
            self.release(self.bares[worker], claims)

    def renew(self, bare: Bare, claims: list[Claim]) -> None:
        scene = self.scene
        held = [scene.lives(claim, bare.name) and scene.rows[claim.id].locked_until >= scene.now for claim in claims]
        due = [is_held and scene.is_free(claim.id) for claim, is_held in zip(claims, held, strict=True)]

        answer = bare.beat.renew(claims)

        assert bare.beat.held(claims) == held
        moves = self.expect(renewal={claim.id for claim, is_due in zip(claims, due, strict=True) if is_due})
        until = {move.id: move.new.locked_until for move in moves[Kind.RENEWAL]}
        assert answer == [until[claim.id] if is_due else None for claim, is_due in zip(claims, due, strict=True)]

    def release(self, bare: Bare, known: list[Claim]) -> None:
        keys = {(claim.id, claim.claimed_at) for claim in known}
        ends = {
            row.id: RELEASED
            for row in self.scene.rows.values()
            if row.state == JobState.PROCESSING
            and row.locked_by == bare.name
            and (row.id, row.claimed_at) not in keys
            and self.scene.is_free(row.id)
        }
        assert {job.id for job in bare.store.release(known)} == ends.keys()
        self.expect(ends=ends)

    # -- reapers

    @rule(who=st.sampled_from([0, 1, None]), guarded=st.booleans(), batch=st.integers(1, 5), leases=LEASES)
    def reap(self, who: int | None, guarded: bool, batch: int, leases: Iterable[int]) -> None:
        """
        Let leases run out, and the reaper of a whole worker make a round, or one by itself.
        """
        self.run_out(leases)
        if who is not None:
            pilot, expired = self.pilots[who], self.expired()
            assert pilot.round("reaper")
            self.check_reaped(None, expired, pilot.guards)
            return
        expired, guards = self.expired()[:batch], GUARD if guarded else {}
        jobs = ReaperStore(on(self.stage.engine)).reap(guards, batch)
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

    # -- retention

    @rule(worker=WORKER, picks=PICKS)
    def retain(self, worker: int, picks: list[int]) -> None:
        """
        Let jobs grow old, and the retention of a whole worker make a round: it deletes the terminal ones.
        """
        old = "UPDATE job SET updated_at = now() - %s - interval '1 s' WHERE id = ANY(%s)"
        self.stage.edit(old, RETENTION, [row.id for row in self.pick(picks)])
        self.expect()
        rows = self.scene.rows.values()
        due = {row.id for row in rows if row.state in TERMINAL and row.updated_at < self.scene.now - RETENTION}
        assert self.pilots[worker].round("retention")
        self.expect(delete=due - self.scene.locked)

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

    @rule(worker=WORKER, acts=ACTS, leases=LEASES, fault=FAULT, after=st.sampled_from([0, 0, 1]))
    def work_in_trouble(
        self, worker: int, acts: list[Acting], leases: Iterable[int], fault: Fault | None, after: int
    ) -> None:
        """
        Let handlers end that may have lost their leases, and the pump lose the answer to its next statement or so.
        """
        if not self.pilots[worker].executor.running():
            self.pump(worker, hint=True)
        self.reap(None, guarded=False, batch=3, leases=leases)
        for act in acts:
            self.handle(worker, *act)
        self.pump(worker, hint=True, fault=fault, after=after)

    def pump(self, worker: int, *, hint: bool, fault: Fault | None = None, after: int = 0) -> None:
        """
        Let a pump settle what its handlers have left, and claim for its free slots.
        """
        pilot, scene = self.pilots[worker], self.scene
        known, free, ready = pilot.known(), pilot.executor.free(), self.ready(pilot.topics)
        decided = {key: attempt.outcome for key, attempt in known.items() if attempt.outcome}
        spoiled = {attempt for attempt in known.values() if attempt.outcome and attempt.outcome.result == UNSTORABLE}
        if hint:
            pilot.worker._crew.demand.hint()
        pilot.executor.handed.clear()
        answered = pilot.pump(fault, after)

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
        self.check_ledger(pilot)
        return moves

    def check_settled(self, pilot: Pilot, scene: Scene, attempts: Collection[Attempt], ends: Sequence[Move]) -> None:
        """
        What could be written was, what was lost is forgotten, and what somebody else has locked is kept.
        """
        written, known = {move.key for move in ends}, pilot.known()
        for attempt in attempts:
            lives, is_free = scene.lives(attempt.claim, pilot.name), scene.is_free(attempt.claim.id)
            assert (key_of(attempt) in written) == (lives and is_free)
            assert (key_of(attempt) in known) == (lives and not is_free)

    def handle(self, worker: int, pick: int, act: Act, commits: Fault | None) -> None:
        """
        Let a handler run to its end; where it has effects, that settles the attempt as well.
        """
        pilot = self.pilots[worker]
        running: list[Attempt] = pilot.executor.running()
        if not running:
            return
        attempt = running[pick % len(running)]
        in_time = key_of(attempt) in pilot.known()
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
        chained = pilot.chains.get(key_of(attempt), {}).values() if committed else ()
        rows = self.scene.rows.values()
        taken = {(row.topic, row.idempotency_key) for row in rows if row.idempotency_key}
        created = {job.id for job in chained if (job.topic, job.idempotency_key) not in taken}
        moves = self.expect(ends={attempt.claim.id: Outcome(Event.DONE)} if committed else {}, insert=created)
        assert all(move.new.meta == {"chained_by": str(attempt.claim.id)} for move in moves[Kind.INSERT])
        answered = committed and self.stage.commits is None
        assert (key_of(attempt) in pilot.known()) == (not answered)
        if not answered:  # that is a failure; where the claim is lost, or the commit did succeed, it will be refused
            assert attempt.outcome
            assert attempt.outcome.event is verdict(Act.FAIL, attempt.claim)[0]
        if committed and not answered:
            pilot.tried[key_of(attempt)].add(JobState.DONE)
        self.check_ledger(pilot)

    @rule(worker=WORKER, leases=LEASES, woken=st.booleans(), fault=st.sampled_from([None, *CLEAR]))
    def beat(self, worker: int, leases: Iterable[int], woken: bool, fault: Fault | None) -> None:
        """
        Let the heartbeat of a whole worker make a round, after some leases have run out.
        """
        if not self.pilots[worker].known():
            self.pump(worker, hint=True)
        self.run_out(leases)
        pilot, scene = self.pilots[worker], self.scene
        known = pilot.known()
        due, lost = set(), set()
        for key, attempt in known.items():
            if not scene.lives(attempt.claim, pilot.name) or scene.rows[key[0]].locked_until < scene.now:
                lost.add(key)
            elif scene.is_free(key[0]):
                due.add(key[0])
        if not woken:
            self.stage.beats += LEASE.total_seconds()
        with pilot.wires[1].losing(fault):
            answered = pilot.round("heartbeat")

        moves = self.look()
        renewed = {move.id for move in moves[Kind.RENEWAL]}
        assert renewed == (due if fault is not Fault.BEFORE else set()) or (woken and not renewed)
        assert not any(moves[kind] for kind in Kind if kind is not Kind.RENEWAL)
        if not answered:
            return
        for move in moves[Kind.RENEWAL]:
            assert known[move.key].claim.lease.until == move.new.locked_until
        forgotten = known.keys() - pilot.known().keys()
        assert forgotten == {key for key in lost if known[key].outcome is None}
        assert all(known[key].claim.interrupted for key in forgotten)
        self.check_ledger(pilot)

    @rule(worker=WORKER, end=st.sampled_from(End), acts=ACTS, fault=FAULT)
    def leave(self, worker: int, end: End, acts: list[Acting], fault: Fault | None) -> None:
        """
        End a worker in the middle of its work, and start another one in its place.
        """
        self.pump(worker, hint=True)
        for act in acts[1:]:
            self.handle(worker, *act)
        self.pump(worker, hint=True, fault=fault)
        if end is not End.KILLED:
            while self.stage.open:  # what somebody else has locked could not be settled
                self.end_transaction(0, commit=True)
            self.stop(worker, obeyed=end is End.STOPPED)
        self.replace(worker)

    def stop(self, worker: int, *, obeyed: bool) -> None:
        """
        Shut a worker down: what it knew of is settled, but for handlers that ignore it, which keep their leases.
        """
        pilot = self.pilots[worker]
        known, running = pilot.known(), pilot.executor.running()
        deaf = {key_of(attempt) for attempt in running if key_of(attempt) in known and not obeyed}
        pilot.stop(obeyed=obeyed)
        moves = self.worker_moves(pilot, deaf)
        assert not moves[Kind.CLAIM]
        assert pilot.known().keys() <= deaf
        for key in known:
            assert self.scene.lives(known[key].claim, pilot.name) == (key in deaf and key not in self.endings)

    def replace(self, worker: int) -> None:
        self.past.append(self.pilots[worker])
        self.pilots[worker].close()
        self.pilots[worker] = Pilot(self.stage, SERVED[worker])

    # -- strangers, and time

    @rule(stranger=st.sampled_from(Stranger), picks=st.lists(PICK, min_size=1, max_size=3), leases=LEASES)
    @precondition(lambda self: len(self.stage.open) < 3)
    def hold(self, stranger: Stranger, picks: list[int], leases: Iterable[int]) -> None:
        """
        Begin a transaction that locks rows, some of whose leases have run out, and leave it open.
        """
        self.run_out(leases)
        rows = self.pick(picks, frozenset(JobState) if stranger is Stranger.LOCK else frozenset(JobState) - TERMINAL)
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

    @rule(leases=LEASES, scheduled=PICKS, a_while=st.booleans())
    def time_passes(self, leases: Iterable[int], scheduled: Iterable[int], a_while: bool) -> None:
        """
        Let leases run out, let jobs fall due, and let the workers' own clocks go on.
        """
        self.run_out(leases)
        due = "UPDATE job SET available_at = now() WHERE id = ANY(%s) AND available_at > now()"
        self.stage.edit(due, [row.id for row in self.pick(scheduled, CLAIMABLE)])
        self.stage.ahead += SEARCH / 4 if a_while else 0.0
        self.expect()

    def run_out(self, leases: Iterable[int]) -> None:
        past = "UPDATE job SET locked_until = now() - interval '1 s' WHERE id = ANY(%s)"
        self.stage.edit(past, [row.id for row in self.pick(leases, {JobState.PROCESSING})])
        self.expect()

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
        self.time_passes([], [], a_while=True)
        for worker, pilot in enumerate(self.pilots):
            self.pump(worker, hint=False)
            if pilot.lost_at and self.stage.clock() < pilot.lost_at + SEARCH:
                self.check_orphans(pilot)
            self.stop(worker, obeyed=True)
        self.time_passes(ALL, ALL, a_while=True)
        self.reap(None, guarded=True, batch=1_000, leases=[])
        while ready := len(self.ready(TOPICS)):
            self.exchange(0, ready, [], None)
            self.exchange(0, 0, [(Which.ALIVE, pick, "done") for pick in range(ready)], None)
        assert {row.state for row in self.scene.rows.values()} <= TERMINAL


def fate(claim: Claim, before: Scene, after: Scene, worker: str) -> Fate:
    """
    Return what a worker is to be told of an outcome that was not written.
    """
    row = after.rows.get(claim.id)
    same = row is not None and row.claimed_at == claim.claimed_at
    return Fate(before.lives(claim, worker), JobState(row.state) if row and same else None)


@pytest.fixture
def stage(database_url: URL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level("CRITICAL", "sqlalchemy_brooq.worker")  # what goes wrong on purpose fills megabytes
    stage = Stage(database_url)
    stage.install(monkeypatch)
    yield stage
    stage.close()


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * SETTINGS.max_examples)
def test_the_promises_hold_in_any_order_of_events(stage: Stage) -> None:
    explore(cast(Any, partial(Protocol, stage)), settings=SETTINGS)


@pytest.mark.parametrize("missing", ["state", "locked_by", "claimed_at"])
def test_the_model_notices_a_fence_with_a_gap(stage: Stage, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def held(job_id: Any, worker: Any, claimed_at: Any) -> ColumnElement[bool]:
        owner = {"state": PROCESSING, "locked_by": worker, "claimed_at": claimed_at}
        return and_(JOB.c.id == job_id, *(JOB.c[name] == value for name, value in owner.items() if name != missing))

    monkeypatch.setattr(exchange, "held", held)
    monkeypatch.setattr(store, "SETTLE", exchange.settle())
    monkeypatch.setattr(store, "EXCHANGE", exchange.exchange())

    with pytest.raises(AssertionError):
        explore(cast(Any, partial(Protocol, stage)), settings=settings(SETTINGS, phases=[Phase.generate]))
