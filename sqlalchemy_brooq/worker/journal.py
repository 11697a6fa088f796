"""
What the engine says of its work: one log line and the metrics of each event.

Owns the wording and the fields of the log. Never sees a payload.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, Protocol

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.vocabulary import SUCCESS, Event, JobState, Label, Outcome
from sqlalchemy_brooq.worker.port import Reaped

log = logging.getLogger("sqlalchemy_brooq.worker")

PARAGRAPHS: Final = 50
"""The most exceptions of one failure that are shown; a chain may be of any length."""

LEVELS: Final = {
    Event.CLAIMED: logging.DEBUG,
    Event.DONE: logging.INFO,
    Event.FAILED: logging.WARNING,
    Event.DEAD: logging.ERROR,
    Event.CANCELED: logging.INFO,
    Event.REQUEUED: logging.INFO,
}


class Meter(Protocol):
    """
    The counters that the engine moves.
    """

    def claimed(self, topic: str, count: int) -> None: ...  # noqa: D102 - named by the metrics
    def settled(self, topic: str, label: Label, count: int = 1) -> None: ...  # noqa: D102
    def attempted(self, topic: str, seconds: float) -> None: ...  # noqa: D102
    def requeued(self, topic: str, reason: str, count: int) -> None: ...  # noqa: D102
    def hung(self, topic: str) -> None: ...  # noqa: D102
    def busy(self, topic: str, change: int) -> None: ...  # noqa: D102


class Journal:
    """
    Writes down what happened.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._clamped: set[str] = set()
        self._ended: deque[tuple[str, float]] = deque()

    def claimed(self, claims: Sequence[Claim]) -> None:
        """
        Note that jobs were claimed.
        """
        for topic, count in Counter(claim.topic for claim in claims).items():
            self._meter.claimed(topic, count)
        if log.isEnabledFor(logging.DEBUG):
            for claim in claims:
                _say(Event.CLAIMED, claim)

    def settled(self, claim: Claim, outcome: Outcome) -> None:
        """
        Note that an outcome was written.
        """
        if outcome.event is Event.REQUEUED:
            self._meter.requeued(claim.topic, "shutdown", 1)
        else:
            self._meter.settled(claim.topic, outcome.label)
        if log.isEnabledFor(LEVELS[outcome.event]):
            _say(outcome.event, claim, outcome.error)

    def settled_all(self, settled: Sequence[tuple[Claim, Outcome]]) -> None:
        """
        Note that a batch of outcomes was written.
        """
        plain = Counter(claim.topic for claim, outcome in settled if outcome is SUCCESS)
        for topic, count in plain.items():
            self._meter.settled(topic, Label.DONE, count)
        is_told = log.isEnabledFor(LEVELS[Event.DONE])
        for claim, outcome in settled:
            if outcome is not SUCCESS:
                self.settled(claim, outcome)
            elif is_told:
                _say(Event.DONE, claim)

    def lost(self, claim: Claim) -> None:
        """
        Note that a claim ended without an outcome of ours: somebody else had taken, canceled or ended the job.
        """
        self._meter.settled(claim.topic, Label.LOST)
        log.warning("lease lost: %s %s attempt %d", claim.topic, claim.id, claim.attempt, extra=fields(claim))

    def raised(self, claim: Claim, trace: str) -> None:
        """
        Note that a handler raised what nobody asked it to; *trace* is from `safe_traceback`.
        """
        log.error("%s %s attempt %d raised\n%s", claim.topic, claim.id, claim.attempt, trace, extra=fields(claim))

    def cut(self, claim: Claim, asked: timedelta, limit: timedelta) -> None:
        """
        Note, once a topic, that a handler asked for a longer wait than its ``backoff_max`` allows.
        """
        if claim.topic not in self._clamped:
            self._clamped.add(claim.topic)
            durations = format_duration(asked), format_duration(limit)
            text = "%s: RetryLater(%s) was cut to the backoff_max of %s"
            log.warning(text, claim.topic, *durations, extra=fields(claim))

    def reaped(self, jobs: Sequence[Reaped]) -> None:
        """
        Note that leases had run out.
        """
        counts: Counter[str] = Counter()
        for job in jobs:
            if job.state is JobState.DEAD:
                self._meter.settled(job.topic, Label.DEAD)
                log.error(
                    "%s: %s %s died of expired leases", Event.DEAD, job.topic, job.id, extra={"job_id": str(job.id)}
                )
            else:
                counts[job.topic] += 1
        for topic, count in counts.items():
            self._meter.requeued(topic, "lease_expired", count)
        if counts:
            by_topic = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
            log.info("reaper: %s: %d with an expired lease: %s", Event.REQUEUED, sum(counts.values()), by_topic)

    def released(self, jobs: Sequence[Reaped]) -> None:
        """
        Note that jobs were given back whose claim nobody here had heard of.
        """
        for topic, count in Counter(job.topic for job in jobs).items():
            self._meter.requeued(topic, "answer_lost", count)
            log.warning("%s: %s: %d were claimed, and the answer was lost", Event.REQUEUED, topic, count)

    def hung(self, claim: Claim, seconds: float) -> None:
        """
        Note that a handler ignores its interruption.
        """
        self._meter.hung(claim.topic)
        log.error(
            "hung: %s %s attempt %d goes on %.1f s after its interruption; its slot is taken until it ends",
            claim.topic,
            claim.id,
            claim.attempt,
            seconds,
            extra=fields(claim),
        )

    def began(self, claims: Sequence[Claim]) -> None:
        """
        Note that handlers begin.
        """
        for topic, count in Counter(claim.topic for claim in claims).items():
            self._meter.busy(topic, count)

    def attempted(self, claim: Claim, seconds: float) -> None:
        """
        Note that a handler ended; `flush` counts it.
        """
        self._ended.append((claim.topic, seconds))

    def flush(self) -> None:
        """
        Count the handlers that have ended: together, as the counters have locks.
        """
        ended: list[tuple[str, float]] = []
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                ended.append(self._ended.popleft())
        for topic, seconds in ended:
            self._meter.attempted(topic, seconds)
        for topic, count in Counter(topic for topic, _ in ended).items():
            self._meter.busy(topic, -count)


def fields(claim: Claim) -> dict[str, object]:
    """
    Return the machine-readable fields of every line about a job.
    """
    return {"job_id": str(claim.id), "topic": claim.topic, "attempt": claim.attempt}


def _say(event: Event, claim: Claim, error: str | None = None) -> None:
    extra = {"event": event.value, **fields(claim)}
    text = f": {error}" if error else ""
    log.log(LEVELS[event], "%s: %s %s attempt %d%s", event, claim.topic, claim.id, claim.attempt, text, extra=extra)


def safe_traceback(error: BaseException) -> str:
    """
    Return the traceback of *error* and of what it came from, its messages as `error_text` gives them.

    The standard one prints a database error with its parameters, and fails where a ``__str__`` does.
    """
    return "\n".join(_paragraphs(error, set()))


def _paragraphs(error: BaseException, seen: set[int]) -> Iterator[str]:
    chain: list[BaseException] = []
    earlier: BaseException | None = error
    while earlier is not None and id(earlier) not in seen and len(seen) < PARAGRAPHS:
        seen.add(id(earlier))
        chain.append(earlier)
        earlier = earlier.__cause__ or (None if earlier.__suppress_context__ else earlier.__context__)
    for place, one in enumerate(reversed(chain)):
        if place:
            yield "... which led to:"
        yield "".join(traceback.format_tb(one.__traceback__)) + error_text(one)
        if isinstance(one, BaseExceptionGroup):
            for member in one.exceptions:
                yield from _paragraphs(member, seen)
