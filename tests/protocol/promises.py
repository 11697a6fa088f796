"""
What must hold of jobs, whatever happens to them: of each move, each row, each claim's answer, and what a worker knows.

Keeps no states of its own: it counts what a trigger saw, and compares rows with that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from hypothesis.stateful import RuleBasedStateMachine, invariant

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import CLAIMABLE, MOVES, TERMINAL, Event, JobState, Outcome
from tests.protocol.moves import Key, Kind, Move, Row
from tests.protocol.stage import Stage
from tests.protocol.workers import GUARD, LEASE, Pilot

#: What an event may change of a row, beside its state and ``updated_at``.
CHANGES: Final[Mapping[Event, frozenset[str]]] = {
    Event.CLAIMED: frozenset({"attempts", "claimed_at", "locked_by", "locked_until"}),
    Event.DONE: frozenset({"result"}),
    Event.FAILED: frozenset({"attempts", "available_at", "locked_by", "locked_until", "last_error"}),
    Event.DEAD: frozenset({"last_error"}),
    Event.CANCELED: frozenset({"last_error"}),
    Event.REQUEUED: frozenset({"attempts", "requeues", "available_at", "locked_by", "locked_until"}),
}


@dataclass
class Account:
    """
    What has happened to one job.
    """

    claims: int = 0
    refunds: int = 0
    reaps: int = 0


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
        assert new.requeues == old.requeues >= GUARD[old.topic]  # a worker without the guard may have gone beyond it
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


class Witness(RuleBasedStateMachine):
    """
    Sees every move, and knows which ones there may be.
    """

    def __init__(self, stage: Stage, pilots: Sequence[Pilot]) -> None:
        super().__init__()
        self.stage = stage
        self.scene, _ = stage.look()
        self.pilots = [*pilots]
        self.past: list[Pilot] = []
        """Workers that have ended."""
        self.accounts: defaultdict[UUID, Account] = defaultdict(Account)
        self.endings: dict[Key, JobState] = {}
        """The states in which attempts left their jobs."""
        self.gone: set[UUID] = set()

    def look(self) -> dict[Kind, list[Move]]:
        """
        Find out what has happened since the last look, and check each move by itself.
        """
        self.scene, moves = self.stage.look()
        by_kind: dict[Kind, list[Move]] = {kind: [] for kind in Kind}
        for move in moves:
            check_move(move)
            by_kind[move.kind].append(move)
        self.gone |= {move.id for move in by_kind[Kind.DELETE]}
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

    def check_ledger(self, pilot: Pilot) -> None:
        """
        What a worker counts as settled is written, what it counts as lost is not, though answers were lost.
        """
        for claim, outcome in pilot.ledger.entries[pilot.counted :]:
            key = (claim.id, claim.claimed_at)
            row = self.scene.rows.get(claim.id)
            state = row.state if row is not None and row.claimed_at == claim.claimed_at else None
            if outcome is None:
                assert state not in pilot.tried[key]
                lives = row is not None and state == JobState.PROCESSING and row.locked_until >= self.scene.now
                assert not lives or key in pilot.dropped
            elif self.endings[key] != outcome.state:
                # It was requeued, and then somebody else did what had been tried: nobody can tell that from the row.
                assert self.endings[key] is JobState.PENDING
                assert state == outcome.state
                assert state in pilot.tried[key] | pilot.doubted[key]
        pilot.counted = len(pilot.ledger.entries)

    def check_orphans(self, pilot: Pilot) -> None:
        """
        A worker has found, and given back, what it had claimed without an answer.
        """
        rows = [row for row in self.scene.rows.values() if (row.state, row.locked_by) == ("processing", pilot.name)]
        assert {(row.id, row.claimed_at) for row in rows} <= pilot.known().keys()

    @invariant()
    def it_holds(self) -> None:
        self.every_row_tells_one_story()
        self.effects_are_there_if_and_only_if_their_attempt_is_done()
        self.a_worker_knows_what_it_holds()
        self.every_attempt_is_counted_once()

    def every_row_tells_one_story(self) -> None:
        keys = Counter((row.topic, row.idempotency_key) for row in self.scene.rows.values() if row.idempotency_key)
        assert not [key for key, count in keys.items() if count > 1]
        for id_, row in self.scene.rows.items():
            check_row(row)
            account = self.accounts[id_]
            assert (row.attempts, row.requeues) == (account.claims - account.refunds, account.reaps)

    def effects_are_there_if_and_only_if_their_attempt_is_done(self) -> None:
        pilots = [*self.pilots, *self.past]
        tried = {key for pilot in pilots for key in pilot.effects}
        done = {key for key in tried if self.endings.get(key) is JobState.DONE}
        assert Counter(self.scene.probes) == Counter(done)
        there = self.scene.rows.keys() | self.gone
        for pilot in pilots:
            for key, chained in pilot.chains.items():
                is_done = self.endings.get(key) is JobState.DONE
                assert [id_ in there for id_ in chained] == [is_done and bool(job.created) for job in chained.values()]

    def a_worker_knows_what_it_holds(self) -> None:
        for pilot in self.pilots:
            known = pilot.known().keys() | pilot.dropped
            for row in self.scene.rows.values():
                holds = row.state == JobState.PROCESSING and row.locked_by == pilot.name
                assert not holds or row.locked_until < self.scene.now or (row.id, row.claimed_at) in known

    def every_attempt_is_counted_once(self) -> None:
        for pilot in self.pilots:
            keys = Counter((claim.id, claim.claimed_at) for claim, _ in pilot.ledger.entries)
            assert set(keys.values()) <= {1}
