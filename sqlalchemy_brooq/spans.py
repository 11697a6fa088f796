"""
The OpenTelemetry of a job: which span enqueued it, kept in ``meta``, and the span of each of its attempts.

The one module that imports OpenTelemetry, and only its API. Nothing here may break a job: whatever the consumer's
SDK, samplers and processors raise is logged, once. Never sees a payload, and hands on no text of an error but what
`last_error` and the log have as well: what a database error quotes stays out.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sqlalchemy_brooq.claim import Claim, meta_of
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.vocabulary import Event, Label, Outcome

log = logging.getLogger("sqlalchemy_brooq.tracing")

NAME: Final = "sqlalchemy_brooq"
FORMAT: Final = TraceContextTextMapPropagator()
"""W3C trace context, whatever the global propagator is: we are at both ends, and baggage is no business of a table."""
FAILURES: Final = frozenset({Event.FAILED, Event.DEAD})


class Tracing:
    """
    What notes the current span in new jobs, and begins the spans of handlers.

    Args:
        provider: Makes the spans; ``None`` is OpenTelemetry's global one.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = get_tracer(NAME, tracer_provider=provider)
        self._doubts = Doubts()

    def stamp(self, job: Job) -> None:
        """
        Note the current span in a *job* that is being handed in; without one, forget what an earlier time has left.
        """
        values = job.__dict__
        meta = values.get("meta")
        if meta is None or isinstance(meta, dict):
            noted = self.noted(meta or {})
            if noted or meta:
                # Past the instrumentation: an object without a row has nothing to track.
                values["meta"] = noted or None

    def noted(self, meta: dict[str, Any]) -> dict[str, Any]:
        """
        Return *meta* with the current span in it.
        """
        noted = {name: value for name, value in meta.items() if name not in FORMAT.fields}
        with self._doubts.caught():
            FORMAT.inject(noted)
        return noted

    def begin(self, claim: Claim) -> JobSpan | None:
        """
        Begin the span of an attempt, and make it the current one of this context, which is the attempt's own.

        It is the root of a trace, linked to the span that enqueued the job: that one is over, maybe for days,
        and a job may have several attempts. ``None`` where that fails.
        """
        with self._doubts.caught():
            span = self._tracer.start_span(
                f"process {claim.topic}",
                context=Context(),
                kind=SpanKind.CONSUMER,
                attributes={
                    "messaging.system": "brooq",
                    "messaging.operation.name": "process",
                    "messaging.operation.type": "process",
                    "messaging.destination.name": claim.topic,
                    "messaging.message.id": str(claim.id),
                    "brooq.attempt": claim.attempt,
                },
                links=_links(meta_of(claim)),
            )
            attach(set_span_in_context(span))
            return JobSpan(span, self._doubts)
        return None


class JobSpan:
    """
    The span of an attempt, for the engine.
    """

    __slots__ = ("_doubts", "_span", "trace")

    def __init__(self, span: Span, doubts: Doubts) -> None:
        self._span: Span | None = span
        self._doubts = doubts
        self.trace: str | None = None
        """The traceback of what the handler raised, unless it was asked to; without the values of a database error."""

    def end(self, outcome: Outcome | None) -> None:
        """
        End the span, the first time, with what was decided about the attempt; ``None``: the claim was lost.
        """
        span, self._span = self._span, None
        if span is None:
            return
        with self._doubts.caught():
            label = Label.LOST if outcome is None else outcome.label
            span.set_attribute("brooq.outcome", label.value)
            if outcome is not None and outcome.event in FAILURES:
                self._fail(span, outcome.error or "")
        with self._doubts.caught():
            span.end()

    def _fail(self, span: Span, error: str) -> None:
        name, _, message = error.partition(": ")
        raised = {"exception.type": name, "exception.message": message}
        if self.trace is not None:
            raised["exception.stacktrace"] = self.trace
        span.set_attribute("error.type", name)
        span.add_event("exception", raised)
        span.set_status(Status(StatusCode.ERROR, error))


class Doubts:
    """
    Keeps what tracing raises away from the jobs, and logs the first of it.
    """

    def __init__(self) -> None:
        self._told = False

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """
        Catch what is raised inside.
        """
        try:
            yield
        except Exception:
            if not self._told:
                self._told = True
                log.exception("OpenTelemetry raised; the jobs go on without it, and this is logged once")


def _links(meta: str | None) -> list[Link]:
    """
    Return the link to the span that *meta* names, if it names one: anybody may have written anything there.
    """
    found: Any = None
    if meta is not None:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(meta)
    if not isinstance(found, dict):
        return []
    carrier = {name: found[name] for name in FORMAT.fields if isinstance(found.get(name), str)}
    enqueued_in = get_current_span(FORMAT.extract(carrier, Context())).get_span_context()
    return [Link(enqueued_in)] if enqueued_in.is_valid else []
