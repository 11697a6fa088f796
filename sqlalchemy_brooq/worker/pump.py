"""
The pump: moves jobs both ways, outcomes to the database and claims to the executor.

Owns when to ask, and what to do with an answer that is not the plain one. Group commit without a timer:
the first outcome goes at once, those that gather meanwhile go together next.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from sqlalchemy_brooq import policy
from sqlalchemy_brooq.vocabulary import Outcome
from sqlalchemy_brooq.worker.attempt import Attempt, Handler, InFlight, by_job
from sqlalchemy_brooq.worker.journal import Journal, log
from sqlalchemy_brooq.worker.port import Claimed, PumpPort, Settlement, SpoiledBatch
from sqlalchemy_brooq.worker.turns import Request, Turns

BATCH: Final = 500
"""Jobs a statement, each way."""
BATCH_SIZE: Final = 2**23
"""Characters of results after which a batch is closed."""
WORTHWHILE: Final = 4
"""While work is there, ask once a quarter of the slots is free: whole batches are cheaper."""
SOON: Final = 0.005
"""Seconds between looks after a wake-up, and before asking for fewer jobs than would be worthwhile."""
LOOK_AGAIN: Final = 0.030
"""Seconds for which a woken pump looks again: what a producer's next commits bring, it brings unannounced."""
SEARCH: Final = 20.0
"""Seconds for which a claim without an answer is searched for: a server that hung may finish it late."""
REFUSALS: Final = 6
"""How often an outcome is offered that the database refuses, each time plainer; then the lease is left to run out."""
RETRY_HELD: Final = 0.05
"""Seconds before an outcome is written again whose row somebody else held."""


class Outbox:
    """
    Outcomes on their way to the database; handlers put in, the pump takes out.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._attempts: deque[Attempt] = deque()
        self._later: list[tuple[float, Attempt]] = []
        self.wake = wake

    def __len__(self) -> int:
        return len(self._attempts) + len(self._later)

    def put(self, attempt: Attempt) -> None:
        """
        Take an attempt whose outcome is decided.
        """
        self._attempts.append(attempt)
        self.wake()

    def put_back(self, attempts: Iterable[Attempt], *, pause: float = 0.0) -> None:
        """
        Take attempts whose outcomes could not be written, to be tried again.
        """
        due = time.monotonic() + pause
        self._later.extend((due, attempt) for attempt in attempts)

    def take(self, now: float) -> list[Attempt]:
        """
        Hand out up to a batch.
        """
        if self._later:
            due = [attempt for moment, attempt in self._later if moment <= now]
            self._later = [(moment, attempt) for moment, attempt in self._later if moment > now]
            self._attempts.extendleft(reversed(due))
        batch: list[Attempt] = []
        size = 0
        while self._attempts and len(batch) < BATCH and size < BATCH_SIZE:
            batch.append(self._attempts.popleft())
            size += len(outcome_of(batch[-1]).result or "")
        return batch

    def pause(self, now: float) -> float | None:
        """
        Return the seconds until something can be taken, or ``None``.
        """
        if self._attempts:
            return 0.0
        return max(0.0, min(moment for moment, _ in self._later) - now) if self._later else None


class Slots:
    """
    What the pump needs to know of the executor.
    """

    def __init__(self, total: int, free: Callable[[], int], submit: Callable[[Sequence[Attempt]], None]) -> None:
        self.total = total
        self.free = free
        self.submit = submit


class Pump:
    """
    One round is at most one statement.

    Args:
        port: Runs the statements.
        handlers: The served topics.
        slots: The executor's side.
        outbox: Where outcomes gather.
        in_flight: The table of attempts.
        journal: Is told of claims and outcomes.
        lease: How long a claim is good for.
        poll_interval: The longest pause between two looks; jitter lengthens it to at most 1.5 times.
    """

    def __init__(
        self,
        port: PumpPort,
        handlers: Mapping[str, Handler],
        slots: Slots,
        outbox: Outbox,
        in_flight: InFlight,
        journal: Journal,
        *,
        lease: timedelta,
        poll_interval: timedelta,
    ) -> None:
        self._port = port
        self._handlers = handlers
        self._slots = slots
        self._outbox = outbox
        self._in_flight = in_flight
        self._journal = journal
        self._lease = lease.total_seconds()
        self._poll_interval = poll_interval.total_seconds()
        self._turns = Turns(handlers)
        self._claiming = bool(handlers)
        self._more = False
        self._next_look = 0.0
        self._looking_until = 0.0
        self._hinted = threading.Event()
        self._searching_until = 0.0
        self._next_search = 0.0
        self._claim_turn = threading.Lock()

    def hint(self) -> None:
        """
        Take note that there may be ready jobs.
        """
        self._hinted.set()

    def stop_claiming(self) -> None:
        """
        Claim nothing more; outcomes still go out. A claim that is under way has ended when this returns.
        """
        self._claiming = False
        self._searching_until = 0.0  # what is abandoned must not be taken for unknown
        with self._claim_turn:
            pass

    def round(self) -> float:
        """
        Exchange what there is to exchange, and return the seconds until the next round.
        """
        now = time.monotonic()
        if self._hinted.is_set():
            self._hinted.clear()
            self._looking_until = now + LOOK_AGAIN
            self._next_look = now
        if now < self._searching_until and now >= self._next_search:
            self._search(now)
        batch = self._outbox.take(now)
        with self._claim_turn:
            want = self._want(now)
            if batch or want:
                self._exchange(batch, want, now)
        return self._pause(time.monotonic())

    def recover(self) -> None:
        """
        Drop what an error may have broken.
        """
        self._port.recover()

    def _want(self, now: float) -> int:
        """
        Return how many jobs to ask for.
        """
        free = min(self._slots.free(), BATCH) if self._claiming else 0
        if free <= 0:
            return 0
        worthwhile = free * WORTHWHILE >= self._slots.total
        return free if now >= self._next_look or (self._more and worthwhile) else 0

    def _pause(self, now: float) -> float:
        pauses = [self._poll_interval]
        outcomes = self._outbox.pause(now)
        if outcomes is not None:
            pauses.append(outcomes)
        free = self._slots.free() if self._claiming else 0
        if free > 0:
            pauses.append(max(0.0, self._next_look - now))
            if self._more and free * WORTHWHILE >= self._slots.total:
                return 0.0
        return min(pauses)

    def _exchange(self, batch: list[Attempt], want: int, now: float) -> None:
        request = self._turns.request(want) if want else None
        batch.sort(key=by_job)
        try:
            answer = self._port.exchange([settlement(attempt) for attempt in batch], request)
        except SpoiledBatch as spoiled:
            self._in_doubt(batch, request, now)  # it may be the answer that is spoiled
            self._spoiled(batch, spoiled, alone=request is None)
            return
        except Exception:
            self._in_doubt(batch, request, now)
            self._outbox.put_back(batch)
            raise
        unwritten = {batch[place] for place in answer.unwritten}
        self._settled([attempt for attempt in batch if attempt not in unwritten])
        if request is not None:
            self._turns.learn((one.claim.priority, one.claim.topic) for one in answer.claimed)
            self._more = len(answer.claimed) >= want
            self._plan_look(now)
            self._hand_over(answer.claimed, now + self._lease)
        if unwritten:
            self._look_after(list(unwritten))

    def _in_doubt(self, batch: Iterable[Attempt], request: Request | None, now: float) -> None:
        """
        Keep in mind that a statement without an answer may have been committed.
        """
        for attempt in batch:
            outcome = outcome_of(attempt)
            attempt.tried[outcome.state] = outcome
        if request is not None and self._claiming:
            self._searching_until, self._next_search = now + SEARCH, 0.0

    def _search(self, now: float) -> None:
        """
        Give back what a claim took whose answer was lost: it may have committed, even after we gave it up.

        This is the only pump of its worker, so whatever it has claimed and heard of is in the table of attempts.
        """
        released = self._port.release([attempt.claim for attempt in self._in_flight.all()])
        if released:
            self._journal.released(released)
            self._next_look = now
        self._next_search = now + SEARCH / 4

    def _plan_look(self, now: float) -> None:
        """
        Decide when to look for jobs again if nothing else happens.
        """
        if self._more or now < self._looking_until:
            self._next_look = now + SOON
        else:
            self._next_look = now + self._poll_interval * random.uniform(1.0, 1.5)  # noqa: S311 - jitter

    def _settled(self, attempts: Collection[Attempt]) -> None:
        self._in_flight.remove(attempts)
        for attempt in attempts:
            self._journal.settled(attempt.claim, outcome_of(attempt))

    def _hand_over(self, claimed: Sequence[Claimed], lease_end: float) -> None:
        """
        Give freshly claimed jobs to the executor; one with a broken payload has failed already.
        """
        if not claimed:
            return
        attempts = [Attempt(one.claim, self._handlers[one.claim.topic], lease_end) for one in claimed]
        self._in_flight.add(attempts)
        self._journal.claimed([one.claim for one in claimed])
        ready: list[Attempt] = []
        for one, attempt in zip(claimed, attempts, strict=True):
            if one.broken is None:
                ready.append(attempt)
            elif attempt.conclude():
                attempt.outcome = policy.decide(
                    one.claim.attempt, one.claim.requeues, attempt.handler.options, one.broken
                )
                self._outbox.put(attempt)
        self._slots.submit(ready)

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
            self._in_flight.remove([attempt])
            written = attempt.tried.get(fate.state) if fate.state is not None else None
            if written is not None:
                self._journal.settled(attempt.claim, written)
            else:
                self._journal.lost(attempt.claim)
        self._outbox.put_back(held, pause=RETRY_HELD)

    def _spoiled(self, batch: list[Attempt], spoiled: SpoiledBatch, *, alone: bool) -> None:
        """
        Write each outcome of a batch alone, so that the one which can't be written spoils nothing else.
        """
        if len(batch) > 1 or not alone:
            for place, attempt in enumerate(batch):
                try:
                    self._exchange([attempt], 0, time.monotonic())
                except Exception:
                    self._outbox.put_back(batch[place + 1 :])
                    raise
            return
        attempt = batch[0]
        attempt.refusals += 1
        if attempt.refusals > REFUSALS:
            self._in_flight.remove([attempt])
            log.error(
                "the outcome of %s %s is refused again and again (%s): it is given up, and its lease runs out",
                attempt.claim.topic,
                attempt.claim.id,
                spoiled,
            )
            return
        log.error(
            "the outcome of %s %s can't be written as it is (%s): what can't be stored is left out",
            attempt.claim.topic,
            attempt.claim.id,
            spoiled,
        )
        attempt.outcome = plainer(attempt)
        self._outbox.put_back([attempt], pause=RETRY_HELD * 2**attempt.refusals)


def outcome_of(attempt: Attempt) -> Outcome:
    """
    Return the outcome that was decided for *attempt*.
    """
    if attempt.outcome is None:
        raise RuntimeError(f"{attempt.claim!r} reached the pump without an outcome")
    return attempt.outcome


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
