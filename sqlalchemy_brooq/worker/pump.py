"""
A pump: moves jobs both ways, outcomes to the database and claims to the executor.

Owns the exchange, and what to do with an answer that is not the plain one. Group commit without a timer:
the first outcome goes at once, those that gather meanwhile go together next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy_brooq import policy
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import SUCCESS, Notice, Outcome
from sqlalchemy_brooq.worker.attempt import Attempt, Handler, by_job, outcome_of
from sqlalchemy_brooq.worker.demand import Demand
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.journal import fields
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.port import RETRY_HELD, Exchanged, PumpPort, Settlement, SpoiledBatch
from sqlalchemy_brooq.worker.traffic import Traffic
from sqlalchemy_brooq.worker.turns import Request

SEARCH: Final = 20.0
"""Seconds for which a claim without an answer is searched for: a server that hung may finish it late."""
SOON: Final = 0.005
"""Seconds before a search that has to wait for the other pump's claim is tried again."""
REFUSALS: Final = 6
"""How often an outcome is offered that the database refuses, each time plainer; then the lease is left to run out."""


class Doubts:
    """
    Claims of this worker whose answers were lost; its pumps share them.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._next = 0.0

    def raise_at(self, now: float) -> None:
        """
        Search from now on for a while.
        """
        self._until, self._next = now + SEARCH, 0.0

    def are_due(self, now: float) -> bool:
        """
        Whether to search now.
        """
        return self._next <= now < self._until

    def searched(self, now: float) -> None:
        """
        Let the next search wait a while.
        """
        self._next = now + SEARCH / 4

    def dismiss(self) -> None:
        """
        Search no more.
        """
        self._until = 0.0


class Crew:
    """
    What the pumps of one worker share.

    Args:
        handlers: The served topics.
        demand: Says what to ask for.
        desk: Where is written down what becomes of attempts.
        submit: Gives freshly claimed attempts to the executor.
        lease: How long a claim is good for, in seconds.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        demand: Demand,
        desk: Desk,
        submit: Callable[[Sequence[Attempt]], None],
        lease: float,
    ) -> None:
        self.handlers = handlers
        self.demand = demand
        self.desk = desk
        self.submit = submit
        self.lease = lease
        self.traffic = Traffic(desk.outbox, demand)
        self.doubts = Doubts()

    def stop_claiming(self) -> None:
        """
        Claim nothing more; outcomes still go out. A claim that is under way has ended when this returns.
        """
        self.demand.stop()
        self.doubts.dismiss()  # what is abandoned must not be taken for unknown


class Pump:
    """
    One round is at most one statement.

    Args:
        number: Which pump of its worker it is, from 0.
        port: Runs the statements.
        crew: What it shares with the others.
    """

    def __init__(self, number: int, port: PumpPort, crew: Crew) -> None:
        self._number = number
        self._port = port
        self._handlers = crew.handlers
        self._demand = crew.demand
        self._desk = crew.desk
        self._outbox = crew.desk.outbox
        self._in_flight = crew.desk.in_flight
        self._journal = crew.desk.journal
        self._submit = crew.submit
        self._lease = crew.lease
        self._traffic = crew.traffic
        self._doubts = crew.doubts

    def round(self) -> float:
        """
        Exchange what there is to exchange, and return the seconds until the next round.
        """
        now = time.monotonic()
        if self._doubts.are_due(now):
            self._search(now)
        if not self._traffic.enter(self._number):
            return self._demand.poll_interval  # whoever is at work goes on with what is left
        try:
            batch = self._outbox.take(now)
            # None begins while a search is due, which waits for those under way.
            request = None if self._doubts.are_due(now) else self._demand.take(now)
            if batch or request:
                self._exchange(batch, request, now)
        finally:
            self._traffic.leave(self._number)
        self._journal.flush()
        return self._pause(time.monotonic())

    def recover(self) -> None:
        """
        Drop what an error may have broken.
        """
        self._port.recover()

    def _pause(self, now: float) -> float:
        outcomes = self._outbox.pause(now)
        pause = SOON if self._doubts.are_due(now) else self._demand.pause(now)
        return pause if outcomes is None else min(pause, outcomes)

    def _exchange(self, batch: list[Attempt], request: Request | None, now: float) -> None:
        claims: Sequence[Claim] | None = None
        try:
            claims = self._exchanged(batch, request, now)
        finally:
            if request is not None:
                self._demand.done(request, claims, now, time.monotonic())

    def _exchanged(self, batch: list[Attempt], request: Request | None, now: float) -> Sequence[Claim] | None:
        """
        Do it, and return what was claimed once the executor has it; ``None`` where that is not known.
        """
        batch.sort(key=by_job)
        batch.sort(key=_has_little_to_say)
        try:
            answer = self._port.exchange([settlement(attempt) for attempt in batch], request)
        except SpoiledBatch as spoiled:
            self._in_doubt(batch, request, now)  # it may be the answer that is spoiled
            self._spoiled(batch, spoiled, alone=request is None)
            return None
        except Exception:
            self._in_doubt(batch, request, now)
            self._outbox.put_back(batch)
            raise
        unwritten = {batch[place] for place in answer.unwritten}
        self._settled([attempt for attempt in batch if attempt not in unwritten] if unwritten else batch)
        try:
            self._hand_over(answer, now + self._lease)
        finally:
            if unwritten:
                self._look_after(list(unwritten))
        return answer.claims

    def _in_doubt(self, batch: Iterable[Attempt], request: Request | None, now: float) -> None:
        """
        Keep in mind that a statement without an answer may have been committed.
        """
        for attempt in batch:
            attempt.may_have_written(outcome_of(attempt))
        if request is not None and not self._demand.stopped:
            self._doubts.raise_at(now)

    def _search(self, now: float) -> None:
        """
        Give back what a claim took whose answer was lost: it may have committed, even after we gave it up.

        While no claim is under way, whatever this worker has claimed and heard of is in the table of attempts.
        """
        if not self._demand.hold():
            return
        try:
            released = self._port.release([attempt.claim for attempt in self._in_flight.all()])
        finally:
            self._demand.go_on()
        if released:
            self._journal.released(released)
            self._demand.look_now()
        self._doubts.searched(now)

    def _settled(self, attempts: Sequence[Attempt]) -> None:
        self._in_flight.remove(attempts)
        self._journal.settled_all([(attempt.claim, outcome_of(attempt)) for attempt in attempts])

    def _hand_over(self, answer: Exchanged, lease_end: float) -> None:
        """
        Give freshly claimed jobs to the executor; one with a broken payload has failed already.
        """
        if not answer.claims:
            return
        attempts = [Attempt(claim, self._handlers[claim.topic], lease_end) for claim in answer.claims]
        self._in_flight.add(attempts)
        self._journal.claimed(answer.claims)
        if answer.broken:
            attempts = [attempt for attempt in attempts if not self._is_broken(attempt, answer.broken)]
        self._submit(attempts)

    def _is_broken(self, attempt: Attempt, broken: Mapping[Claim, Exception]) -> bool:
        """
        Record the failure of an attempt whose payload can't be decoded.
        """
        claim = attempt.claim
        if claim not in broken:
            return False
        if attempt.conclude():
            attempt.outcome = policy.decide(claim.attempt, claim.requeues, attempt.handler.options, broken[claim])
            self._outbox.put(attempt)
        return True

    def _look_after(self, attempts: list[Attempt]) -> None:
        """
        Deal with outcomes that were not written: their rows are locked by others, written before, or lost.
        """
        try:
            fates = self._port.fates([attempt.claim for attempt in attempts])
        except Exception:
            self._outbox.put_back(attempts)
            raise
        held = []
        for attempt, fate in zip(attempts, fates, strict=True):
            if fate.held:
                held.append(attempt)
                continue
            written = attempt.tried.get(fate.state) if attempt.tried and fate.state else None
            if written is not None:
                self._desk.written(attempt, written)
            else:
                self._desk.lost(attempt)
        self._outbox.put_back(held, pause=RETRY_HELD)

    def _spoiled(self, batch: list[Attempt], spoiled: SpoiledBatch, *, alone: bool) -> None:
        """
        Write each outcome of a batch alone, so that the one which can't be written spoils nothing else.
        """
        if len(batch) > 1 or not alone:
            for place, attempt in enumerate(batch):
                try:
                    self._exchange([attempt], None, time.monotonic())
                except Exception:
                    self._outbox.put_back(batch[place + 1 :])
                    raise
            return
        self._refused(batch[0], spoiled)

    def _refused(self, attempt: Attempt, spoiled: SpoiledBatch) -> None:
        """
        Offer a plainer outcome, or in the end give it up.
        """
        attempt.refusals += 1
        claim = attempt.claim
        extra = {"event": Notice.OUTCOME_REFUSED.value, **fields(claim)}
        if attempt.refusals > REFUSALS:
            self._in_flight.remove([attempt])
            text = "the outcome of %s %s is refused again and again (%s): it is given up, and its lease runs out"
        else:
            attempt.outcome = plainer(attempt)
            self._outbox.put_back([attempt], pause=RETRY_HELD * 2**attempt.refusals)
            text = "the outcome of %s %s can't be written as it is (%s): what can't be stored is left out"
        log.error(text, claim.topic, claim.id, spoiled, extra=extra)


def _has_little_to_say(attempt: Attempt) -> bool:
    """
    Sort the outcomes that say more than ``done`` to the front.
    """
    return attempt.outcome is SUCCESS


def settlement(attempt: Attempt) -> Settlement:
    """
    Return what to write about *attempt*.
    """
    return Settlement(attempt.claim, outcome_of(attempt))


def plainer(attempt: Attempt) -> Outcome:
    """
    Return the outcome without what the database may have refused: the result, then the text, then the success itself.
    """
    outcome = outcome_of(attempt)
    if outcome.result is not None:
        return replace(outcome, result=None)
    claim = attempt.claim
    refused = RuntimeError("the database refused the outcome; the worker's log says why")
    return policy.failure(claim.attempt, claim.requeues, attempt.handler.options, refused)
