"""
A cancel against an outcome, at the same moment: what `brooq.cancel` answered and what the row says agree for good.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.vocabulary import TERMINAL
from tests.sides import PATIENCE, MakeSide, Move, Side, watch, write
from tests.waiting import eventually

JOBS = 300
SLOTS = 4
BY_HAND = (
    "UPDATE job SET state = 'canceled', updated_at = now()"
    " WHERE id = :id AND state IN ('pending', 'failed', 'processing')"
)


def cancel(engine: Engine, job_id: UUID) -> bool:
    with Session(engine) as session, session.begin():
        return brooq.cancel(session, job_id)


def cancel_by_hand(engine: Engine, job_id: UUID) -> bool:
    with engine.begin() as connection:
        return connection.execute(text(BY_HAND), {"id": job_id}).rowcount == 1


class Race:
    """
    Jobs whose handlers end at the moment in which somebody cancels them.
    """

    def __init__(self, side: Side) -> None:
        self.answers: dict[UUID, bool] = {}
        self._side = side
        self._running: SimpleQueue[tuple[brooq.Claim, threading.Barrier] | None] = SimpleQueue()

    def run(self, claim: brooq.Claim) -> None:
        """
        Be a handler: chain a follow-up, wait for the canceler, and end one way or the other.
        """
        claim.chain(brooq.Job("follow-up", str(claim.id)))
        barrier = threading.Barrier(2)
        self._running.put((claim, barrier))
        barrier.wait(PATIENCE)
        if claim.payload % 3 == 1:
            raise ValueError("no")
        if claim.payload % 3 == 2:
            raise brooq.CancelJob

    @contextmanager
    def canceling(self) -> Iterator[None]:
        """
        Cancel whatever runs.
        """
        with ThreadPoolExecutor(SLOTS) as pool:
            cancelers = [pool.submit(self._cancel) for _ in range(SLOTS)]
            try:
                yield
            finally:
                for _ in cancelers:
                    self._running.put(None)
            for canceler in cancelers:
                canceler.result(10)

    def _cancel(self) -> None:
        while (found := self._running.get()) is not None:
            claim, barrier = found
            barrier.wait(PATIENCE)
            by_hand = claim.payload // 3 % 2
            self.answers[claim.id] = (cancel_by_hand if by_hand else cancel)(self._side.engine, claim.id)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("level", [None, "SERIALIZABLE"])
def test_a_cancel_and_an_outcome_agree_every_time(
    make_side: MakeSide, level: str | None, *, transactional: bool
) -> None:
    side = make_side(workers=SLOTS, level=level, backoff_base="1h", backoff_max="1h")
    race = Race(side)
    moves = watch(side.engine)

    def handle(claim: brooq.Claim, session: Session) -> None:
        write(session, claim.payload)
        race.run(claim)

    if transactional:
        side.transactional("t", handle)
    else:
        side.ordinary("t", race.run)
    ids = side.add(*(brooq.Job("t", n) for n in range(JOBS)))
    with race.canceling():
        side.start()
        eventually(lambda: len(race.answers) == JOBS, timeout=60)

    labels = side.labels("t")
    states = {job.id: job.state for job in side.jobs("t")}
    wrong = {job_id for job_id, state in states.items() if not agree(race.answers[job_id], state)}
    assert (len(states), wrong) == (JOBS, set())
    check_moves(moves())
    done = {str(job_id) for job_id, state in states.items() if state == "done"}
    assert {job.payload for job in side.jobs("follow-up")} == done
    assert side.notes() == [n for n, job_id in enumerate(ids) if transactional and states[job_id] == "done"]
    assert (sum(labels.values()), labels.get("done", 0)) == (JOBS, len(done))
    # Both sides have won now and then, or this was no race.
    assert (set(race.answers.values()), len(labels) > 1) == ({True, False}, True)


def agree(canceled: bool, state: str) -> bool:
    """
    Whether what a cancel answered is true of the state in which its job is in the end.
    """
    return state == "canceled" if canceled else state in TERMINAL


def check_moves(moves: list[Move]) -> None:
    """
    Check that nothing ever happened to a row that was over, and that a cancel never moves a job's time.
    """
    assert [move for move in moves if move.old in TERMINAL] == []
    assert [move for move in moves if move.new == "canceled" and move.due] == []


def test_a_job_that_was_canceled_between_its_claim_and_its_handler_leaves_nothing(make_side: MakeSide) -> None:
    side = make_side(workers=1, prefetch=5, lease="2s")
    running, go_on = threading.Event(), threading.Event()

    def first(_: brooq.Claim, session: Session) -> None:
        running.set()
        side.wait(go_on)
        write(session, 1)

    side.transactional("first", first)
    side.transactional("t", lambda _, session: write(session, 2))
    side.add(brooq.Job("first", priority=1))
    (waiting,) = side.add(brooq.Job("t"))
    side.start()
    assert running.wait(PATIENCE)
    side.reaches(waiting, "processing")

    assert cancel(side.engine, waiting)
    go_on.set()

    assert side.labels("t") == {"lost": 1}
    assert (side.notes(), side.reaches(waiting, "canceled")["attempts"]) == ([1], 1)


def test_each_attempt_is_counted_once_whatever_became_of_it(make_side: MakeSide) -> None:
    side = make_side(workers=4, max_attempts=3)
    ends: dict[str, list[BaseException | None]] = {
        "returns": [None],
        "fails, then returns": [ValueError("no"), None],
        "dies": [ValueError("no")] * 3,
        "calls itself off": [brooq.CancelJob()],
        "is preserved, then returns": [brooq.PreserveAttempt(), None],
    }
    begun: Counter[str] = Counter()

    def handle(claim: brooq.Claim, session: Session) -> Any:
        name = claim.payload
        end = ends[name][begun[name]]
        begun[name] += 1
        write(session, list(ends).index(name))
        claim.on_success(side.callback(lambda session: session.add(brooq.Job("follow-up"))))
        if end is not None:
            raise end

    side.transactional("t", handle)
    side.add(*(brooq.Job("t", name) for name in ends))
    side.start()

    eventually(lambda: all(job.state in TERMINAL for job in side.jobs("t")))
    assert side.labels("t") == {"done": 3, "failed": 3, "dead": 1, "canceled": 1, "preserved": 1}
    assert side.notes() == [0, 1, 4]
    assert len(side.jobs("follow-up")) == 3
