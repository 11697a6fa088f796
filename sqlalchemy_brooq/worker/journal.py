"""
What the engine says of its work: one log line, the metrics and the callbacks of each event.

Owns the wording and the fields of the log. Never sees a payload. What nobody listens to costs next to nothing.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final, Protocol

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import AttemptTimeout
from sqlalchemy_brooq.logs import fields as job_fields
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.vocabulary import SUCCESS, Event, JobEvent, JobState, Label, Notice, Outcome
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.port import Reaped

PARAGRAPHS: Final = 50
"""The most exceptions of one failure that are shown; a chain may be of any length."""

DIED: Final = "the lease expired more often than max_requeues allows"

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


class Listeners(Protocol):
    """
    Who wants to hear of events beside the log.
    """

    def __contains__(self, event: Event) -> bool: ...
    def put(self, event: JobEvent) -> None: ...  # noqa: D102 - takes one


class Journal:
    """
    Writes down what happened.

    Args:
        meter: The counters.
        listeners: The consumer's callbacks.
    """

    def __init__(self, meter: Meter, listeners: Listeners | None = None) -> None:
        self._meter = meter
        self._listeners = listeners
        self._clamped: set[str] = set()
        self._ended: deque[tuple[str, float]] = deque()

    def claimed(self, claims: Sequence[Claim]) -> None:
        """
        Note that jobs were claimed.
        """
        for topic, count in Counter(claim.topic for claim in claims).items():
            self._meter.claimed(topic, count)
        if self._is_heard(Event.CLAIMED):
            self._tell(JobEvent(Event.CLAIMED, claim.id, claim.topic, claim.attempt) for claim in claims)

    def settled(self, claim: Claim, outcome: Outcome) -> None:
        """
        Note that an outcome was written.
        """
        if outcome.event is Event.REQUEUED:
            self._meter.requeued(claim.topic, "shutdown", 1)
        else:
            self._meter.settled(claim.topic, outcome.label)
        if self._is_heard(outcome.event):
            self._tell([JobEvent(outcome.event, claim.id, claim.topic, claim.attempt, outcome.error)])

    def settled_all(self, settled: Sequence[tuple[Claim, Outcome]]) -> None:
        """
        Note that a batch of outcomes was written.
        """
        plain = Counter(claim.topic for claim, outcome in settled if outcome is SUCCESS)
        for topic, count in plain.items():
            self._meter.settled(topic, Label.DONE, count)
        is_heard = self._is_heard(Event.DONE)
        for claim, outcome in settled:
            if outcome is not SUCCESS:
                self.settled(claim, outcome)
            elif is_heard:
                self._tell([JobEvent(Event.DONE, claim.id, claim.topic, claim.attempt)])

    def lost(self, claim: Claim) -> None:
        """
        Note that a claim ended without an outcome of ours: somebody else had taken, canceled or ended the job.
        """
        self._meter.settled(claim.topic, Label.LOST)
        extra = {"event": Notice.LEASE_LOST.value, **fields(claim)}
        log.warning("lease lost: %s %s attempt %d", claim.topic, claim.id, claim.attempt, extra=extra)

    def raised(self, claim: Claim, trace: str) -> None:
        """
        Note that a handler raised what nobody asked it to; *trace* is from `safe_traceback`.
        """
        extra = {"event": Notice.HANDLER_RAISED.value, **fields(claim)}
        log.error("%s %s attempt %d raised\n%s", claim.topic, claim.id, claim.attempt, trace, extra=extra)

    def cut(self, claim: Claim, asked: timedelta, limit: timedelta) -> None:
        """
        Note, once a topic, that a handler asked for a longer wait than its ``backoff_max`` allows.
        """
        if claim.topic not in self._clamped:
            self._clamped.add(claim.topic)
            durations = format_duration(asked), format_duration(limit)
            text = "%s: RetryLater(%s) was cut to the backoff_max of %s"
            extra = {"event": Notice.DELAY_CUT.value, **fields(claim)}
            log.warning(text, claim.topic, *durations, extra=extra)

    def reaped(self, jobs: Sequence[Reaped]) -> None:
        """
        Note that leases had run out.
        """
        counts: Counter[str] = Counter()
        for job in jobs:
            if job.state is JobState.DEAD:
                self._meter.settled(job.topic, Label.DEAD)
                self._tell(
                    [
                        JobEvent(
                            Event.DEAD,
                            job.id,
                            job.topic,
                            job.attempts,
                            DIED,
                        )
                    ]
                )
            else:
                counts[job.topic] += 1
                self._tell([JobEvent(Event.REQUEUED, job.id, job.topic, job.attempts)])
        for topic, count in counts.items():
            self._meter.requeued(topic, "lease_expired", count)
        if counts:
            by_topic = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
            extra = {"event": Notice.LEASES_EXPIRED.value, "count": counts.total()}
            log.info("reaper: requeued %d with an expired lease: %s", counts.total(), by_topic, extra=extra)

    def released(self, jobs: Sequence[Reaped]) -> None:
        """
        Note that jobs were given back whose claim nobody here had heard of.
        """
        for job in jobs:
            self._tell([JobEvent(Event.REQUEUED, job.id, job.topic, job.attempts)])
        for topic, count in Counter(job.topic for job in jobs).items():
            self._meter.requeued(topic, "answer_lost", count)
            extra = {"event": Notice.ANSWER_LOST.value, "topic": topic, "count": count}
            log.warning("%s: %d were claimed, and the answer was lost: requeued", topic, count, extra=extra)

    def timed_out(self, claim: Claim, cause: AttemptTimeout) -> None:
        """
        Note that a handler is asked to end; a plain one may not look.
        """
        extra = {"event": Notice.ATTEMPT_TIMED_OUT.value, **fields(claim)}
        log.warning("%s %s attempt %d: %s", claim.topic, claim.id, claim.attempt, cause, extra=extra)

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
            extra={"event": Notice.HANDLER_HUNG.value, **fields(claim)},
        )

    def abandoned(self, claim: Claim) -> None:
        """
        Note that the worker ends without waiting for a handler.
        """
        log.error(
            "%s %s attempt %d ignores the shutdown: it is abandoned, and its lease runs out by itself",
            claim.topic,
            claim.id,
            claim.attempt,
            extra={"event": Notice.HANDLER_ABANDONED.value, **fields(claim)},
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

    # -- to whom it is said

    def _is_heard(self, event: Event) -> bool:
        """
        Tell whether anybody would hear of *event*: asked once a batch, before anything is put into words.
        """
        return log.isEnabledFor(LEVELS[event]) or (self._listeners is not None and event in self._listeners)

    def _tell(self, events: Iterable[JobEvent]) -> None:
        for event in events:
            # The callbacks' queue first: a consumer's log handler may raise.
            if self._listeners is not None and event.event in self._listeners:
                self._listeners.put(event)
            if log.isEnabledFor(LEVELS[event.event]):
                _say(event)


def fields(claim: Claim) -> dict[str, object]:
    """
    Return the machine-readable fields of every line about a job.
    """
    return job_fields(claim.id, claim.topic, claim.attempt)


def _say(event: JobEvent) -> None:
    extra = {"event": event.event.value, **job_fields(event.job_id, event.topic, event.attempt)}
    text = ""
    if event.error:
        extra["error"] = event.error
        # One line an event, whatever the handler's exception says.
        text = ": " + event.error.replace("\r", "\\r").replace("\n", "\\n")
    name, level = event.event, LEVELS[event.event]
    log.log(level, "%s: %s %s attempt %d%s", name, event.topic, event.job_id, event.attempt, text, extra=extra)


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
