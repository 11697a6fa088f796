"""
OpenTelemetry: the span that enqueues a job is linked to by the spans of its attempts, and tracing never breaks a job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self
from uuid import UUID, uuid4

import pytest
from opentelemetry.baggage import set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    use_span,
)
from sqlalchemy import URL, Engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Enqueued, Job, intake
from sqlalchemy_brooq.spans import FORMAT
from tests.doors import DOORS, PLACES, SESSION_DOORS, Door, stored, working_in
from tests.pages import table
from tests.queues import MakeQueue, all_settled
from tests.recording import jobs
from tests.servers import ROOT
from tests.sides import MakeSide, Side
from tests.waiting import eventually, row

PAGE = ROOT / "docs/how-to/tracing.md"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    """
    A provider of the test's own, with which tracing is on.
    """
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    brooq.tracing.enable(provider)
    yield provider
    brooq.tracing.disable()
    provider.shutdown()


class Caller:
    """
    A span of the consumer's, in which it enqueues.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("test")
        self.context: SpanContext | None = None

    def __enter__(self) -> Self:
        self._entered = self._tracer.start_as_current_span("caller")
        self.context = self._entered.__enter__().get_span_context()
        return self

    def __exit__(self, *raised: object) -> None:
        self._entered.__exit__(None, None, None)

    @property
    def traceparent(self) -> str:
        assert self.context is not None
        return f"00-{self.context.trace_id:032x}-{self.context.span_id:016x}-{int(self.context.trace_flags):02x}"


@pytest.fixture
def caller(provider: TracerProvider) -> Caller:
    return Caller(provider)


def meta(engine: Engine, job_id: UUID) -> Any:
    return row(engine, job_id)["meta"]


def attempts(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CONSUMER]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[str]:
    return [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in span.links]


def insert(engine: Engine, topic: str, noted: str) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO job (topic, meta) VALUES (:topic, :meta)"), {"topic": topic, "meta": noted}
        )


# -- enqueuing


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_notes_the_span_that_it_is_enqueued_in(
    engine: Engine, caller: Caller, door: Door, place: str, key: str | None
) -> None:
    with working_in(place, engine) as producer, caller:
        job_id = door(producer, Job("t", idempotency_key=key)).id

    assert meta(engine, job_id) == {"traceparent": caller.traceparent}


@pytest.mark.parametrize("key", [None, "k"])
def test_an_added_job_notes_the_span_that_it_was_added_in_and_not_the_one_of_its_flush(
    session: Session, engine: Engine, provider: TracerProvider, caller: Caller, key: str | None
) -> None:
    job = Job("t", idempotency_key=key)
    with caller:
        session.add(job)
    with Caller(provider):
        session.commit()

    assert meta(engine, job.id) == job.meta == {"traceparent": caller.traceparent}


def test_a_job_added_while_a_flush_is_running_notes_its_span(session: Session, engine: Engine, caller: Caller) -> None:
    late = Job("late")
    event.listen(session, "after_flush", lambda *_: session.add(late), once=True)
    session.add(Job("t"))
    with caller:
        session.commit()

    assert meta(engine, late.id) == {"traceparent": caller.traceparent}


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("many", [3, intake.COPY_FROM + 1])
def test_each_of_many_jobs_notes_the_span(engine: Engine, caller: Caller, many: int, key: str | None) -> None:
    with engine.begin() as connection, caller:
        brooq.enqueue_many(connection, (Job("t", idempotency_key=key and f"{key}{n}") for n in range(many)))

    assert [job.meta for job in jobs(engine)] == [{"traceparent": caller.traceparent}] * many


def test_every_async_door_notes_the_span(async_engine_url: URL, engine: Engine, caller: Caller) -> None:
    async def enqueue() -> None:
        own = create_async_engine(async_engine_url)
        queue = brooq.Queue(own)
        await queue.aenqueue(Job("alone"))
        async with AsyncSession(own) as session, session.begin():
            await brooq.aenqueue(session, Job("enqueue"))
            await brooq.aenqueue_many(session, [Job("many") for _ in range(intake.COPY_FROM)])
            session.add(Job("add"))
        await own.dispose()

    with caller:
        asyncio.run(enqueue())

    assert {job.topic for job in jobs(engine)} == {"alone", "enqueue", "many", "add"}
    assert all(job.meta == {"traceparent": caller.traceparent} for job in jobs(engine))


def test_the_queues_own_door_notes_the_span(engine: Engine, make_queue: MakeQueue, caller: Caller) -> None:
    queue = make_queue(engine)
    with caller:
        job_id = queue.enqueue(Job("t")).id

    assert meta(engine, job_id) == {"traceparent": caller.traceparent}


def test_a_replay_notes_the_span_that_asked_for_it_beside_what_it_replays(engine: Engine, caller: Caller) -> None:
    first = stored(engine, "dead")
    with Session(engine) as session, session.begin(), caller:
        second = brooq.replay(session, first).id

    assert meta(engine, second) == {"replays": str(first), "traceparent": caller.traceparent}


def test_the_state_of_a_trace_goes_along_and_so_does_that_it_is_not_sampled(engine: Engine, provider: Any) -> None:
    context = SpanContext(int(TRACE, 16), int(SPAN, 16), True, TraceFlags(0), TraceState([("vendor", "x")]))
    with engine.begin() as connection, use_span(NonRecordingSpan(context)):
        job_id = brooq.enqueue(connection, Job("t")).id

    assert meta(engine, job_id) == {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "vendor=x"}


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_without_a_span_nothing_is_written(session: Session, engine: Engine, provider: Any, door: Door) -> None:
    job_id = door(session, Job("t")).id
    session.commit()

    assert meta(engine, job_id) is None


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_nothing_is_written_while_tracing_is_off(session: Session, engine: Engine, caller: Caller, door: Door) -> None:
    brooq.tracing.disable()
    with caller:
        job_id = door(session, Job("t")).id
    session.commit()

    assert meta(engine, job_id) is None


def test_baggage_does_not_go_along(engine: Engine, caller: Caller) -> None:
    token = attach(set_baggage("customer", "42"))
    try:
        with engine.begin() as connection, caller:
            job_id = brooq.enqueue(connection, Job("t")).id
    finally:
        detach(token)

    assert meta(engine, job_id) == {"traceparent": caller.traceparent}


def test_a_job_that_was_there_keeps_the_span_that_enqueued_it(
    engine: Engine, provider: TracerProvider, caller: Caller
) -> None:
    for span in (caller, Caller(provider)):
        with engine.begin() as connection, span:
            job_id = brooq.enqueue(connection, Job("t", idempotency_key="k")).id

    assert meta(engine, job_id) == {"traceparent": caller.traceparent}


def test_a_job_added_again_after_a_rollback_notes_the_later_span(
    session: Session, engine: Engine, provider: TracerProvider, caller: Caller
) -> None:
    job, other, bare = Job("t"), Caller(provider), Job("bare")
    with caller:
        session.add_all([job, bare])
        session.flush()
    session.rollback()
    session.add(bare)
    with other:
        session.add(job)
    session.commit()

    assert meta(engine, job.id) == {"traceparent": other.traceparent}
    assert meta(engine, bare.id) is None


# -- handlers


KINDS = pytest.mark.parametrize("kind", ["ordinary", "transactional"])


def body(kind: str, work: Any) -> Any:
    return work if kind == "ordinary" else lambda claim, _session: work(claim)


@KINDS
def test_an_attempt_has_a_span_that_is_current_in_its_handler_and_links_to_the_enqueuing_one(
    make_side: MakeSide, exporter: InMemorySpanExporter, caller: Caller, kind: str
) -> None:
    seen: list[int] = []
    side = make_side()
    getattr(side, kind)("mail", body(kind, lambda _: seen.append(get_current_span().get_span_context().span_id)))
    with Session(side.engine) as session, session.begin(), caller:
        job_id = brooq.enqueue(session, Job("mail")).id
    side.start()
    eventually(all_settled(side.engine))

    (span,) = eventually(lambda: attempts(exporter))
    assert span.name == "process mail"
    assert span.context is not None
    assert seen == [span.context.span_id]
    assert caller.context is not None
    assert span.context.trace_id != caller.context.trace_id
    assert span.parent is None
    assert links(span) == [caller.traceparent[3:-3]]
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()
    assert attributes(span) == {
        "messaging.system": "brooq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job_id),
        "brooq.attempt": 1,
        "brooq.outcome": "done",
    }


@KINDS
def test_each_attempt_has_a_span_of_its_own_and_a_failed_one_says_why(
    make_side: MakeSide, exporter: InMemorySpanExporter, caller: Caller, kind: str
) -> None:
    def work(claim: brooq.Claim) -> None:
        if claim.attempt == 1:
            raise LookupError("no such: order")

    side = make_side()
    getattr(side, kind)("t", body(kind, work))
    with Session(side.engine) as session, session.begin(), caller:
        brooq.enqueue(session, Job("t"))
    side.start()
    eventually(lambda: len(attempts(exporter)) == 2)

    failed, done = attempts(exporter)
    assert links(failed) == links(done) == [caller.traceparent[3:-3]]
    assert [attributes(span)["brooq.attempt"] for span in (failed, done)] == [1, 2]
    assert attributes(done)["brooq.outcome"] == "done"
    assert attributes(failed)["brooq.outcome"] == "failed"
    assert attributes(failed)["error.type"] == "LookupError"
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "LookupError: no such: order"
    (happened,) = failed.events
    raised = dict(happened.attributes or {})
    assert happened.name == "exception"
    assert "in work" in str(raised.pop("exception.stacktrace"))
    assert raised == {"exception.type": "LookupError", "exception.message": "no such: order"}


@pytest.mark.parametrize(
    ("error", "outcome", "is_error"),
    [
        (brooq.CancelJob("enough"), "canceled", False),
        (brooq.PreserveAttempt("later"), "preserved", True),
        (brooq.RetryLater(timedelta(hours=1)), "failed", True),
        (SystemExit(2), "failed", True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_span_tells_the_outcome(
    make_side: MakeSide,
    exporter: InMemorySpanExporter,
    provider: Any,
    error: BaseException,
    outcome: str,
    is_error: bool,
) -> None:
    def work(_: brooq.Claim) -> None:
        raise error

    side = make_side(backoff_base="1h", backoff_max="1h")
    side.ordinary("t", work)
    side.add(Job("t"))
    side.start()
    (span,) = eventually(lambda: attempts(exporter))

    assert attributes(span)["brooq.outcome"] == outcome
    assert (span.status.status_code is StatusCode.ERROR) is is_error


@KINDS
def test_an_interrupted_attempts_span_names_the_cause(
    make_side: MakeSide, exporter: InMemorySpanExporter, provider: Any, kind: str
) -> None:
    side = make_side(max_attempts=1)
    options = {"attempt_timeout": "50ms"}
    getattr(side, kind)("t", body(kind, lambda claim: until_interrupted(side, claim)), **options)
    side.add(Job("t"))
    side.start()
    (span,) = eventually(lambda: attempts(exporter))

    assert attributes(span)["brooq.outcome"] == "dead"
    assert attributes(span)["error.type"] == "AttemptTimeout"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_attempt_that_is_given_back_at_a_shutdown_is_no_failure(
    engine: Engine, make_queue: MakeQueue, exporter: InMemorySpanExporter, provider: Any, is_async: bool
) -> None:
    running = threading.Event()

    def plain(claim: brooq.Claim) -> None:
        running.set()
        claim.wait(60)

    async def in_loop(_: brooq.Claim) -> None:
        running.set()
        await asyncio.sleep(60)

    queue = make_queue(engine, shutdown_grace="0")
    queue.register("t", in_loop if is_async else plain)
    queue.enqueue(Job("t"))
    queue.start()
    eventually(running.is_set)
    queue.stop()

    (span,) = attempts(exporter)
    assert attributes(span)["brooq.outcome"] == "requeued"
    assert span.status.status_code is StatusCode.UNSET


def until_interrupted(side: Side, claim: brooq.Claim) -> None:
    eventually(lambda: claim.interrupted)
    claim.check()


def test_the_surroundings_of_a_handler_are_part_of_its_span(
    make_side: MakeSide, exporter: InMemorySpanExporter, provider: Any
) -> None:
    seen: list[int] = []

    @contextmanager
    def around() -> Iterator[None]:
        seen.append(get_current_span().get_span_context().span_id)
        yield
        raise LookupError

    side = make_side(max_attempts=1, queue_options={"around": around})
    side.ordinary("t", lambda _: None)
    side.add(Job("t"))
    side.start()
    (span,) = eventually(lambda: attempts(exporter))

    assert span.context is not None
    assert seen == [span.context.span_id]
    assert attributes(span)["error.type"] == "LookupError"
    assert sorted(attributes(span)) == sorted(name.strip("`") for name, _ in table(PAGE, "Attribute"))


def test_a_span_has_no_values_of_a_database_error(
    make_side: MakeSide, exporter: InMemorySpanExporter, provider: Any
) -> None:
    secret = str(uuid4())

    def work(_: brooq.Claim, session: Session) -> None:
        session.execute(text("INSERT INTO note VALUES (7, :secret), (7, :secret)"), {"secret": secret})

    side = make_side(max_attempts=1)
    side.transactional("t", work)
    side.add(Job("t"))
    side.start()
    (span,) = eventually(lambda: attempts(exporter))

    assert attributes(span)["brooq.outcome"] == "dead"
    assert attributes(span)["error.type"] == "IntegrityError"
    assert secret not in span.to_json()
    assert "(7)" not in span.to_json()


@KINDS
def test_a_claim_that_is_lost_is_no_failure_of_its_span(
    make_side: MakeSide, exporter: InMemorySpanExporter, provider: Any, kind: str
) -> None:
    def work(claim: brooq.Claim) -> None:
        with Session(side.engine) as session, session.begin():
            brooq.cancel(session, claim.id)
        if kind == "ordinary":
            claim.chain(Job("never"))  # settles in a transaction of its own

    side = make_side()
    getattr(side, kind)("t", body(kind, work))
    side.add(Job("t"))
    side.start()
    (span,) = eventually(lambda: attempts(exporter))

    assert attributes(span)["brooq.outcome"] == "lost"
    assert span.status.status_code is StatusCode.UNSET


def test_a_commit_that_fails_is_the_spans_failure(
    make_side: MakeSide, exporter: InMemorySpanExporter, provider: Any
) -> None:
    def work(_: brooq.Claim, session: Session) -> None:
        session.execute(text("INSERT INTO once VALUES (1), (1)"))

    side = make_side(max_attempts=1)
    with side.engine.begin() as connection:
        connection.execute(text("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    side.transactional("t", work)
    side.add(Job("t"))
    side.start()
    (span,) = eventually(lambda: attempts(exporter))

    assert attributes(span)["brooq.outcome"] == "dead"
    (happened,) = span.events
    assert "exception.stacktrace" in dict(happened.attributes or {})


@KINDS
def test_a_chained_job_links_to_the_attempt_that_chained_it(
    make_side: MakeSide, exporter: InMemorySpanExporter, caller: Caller, kind: str
) -> None:
    side = make_side()
    getattr(side, kind)(
        "first", body(kind, lambda claim: claim.chain(Job("second"), Job("third", idempotency_key="k")))
    )
    side.ordinary("second", lambda _: None)
    side.ordinary("third", lambda _: None)
    with Session(side.engine) as session, session.begin(), caller:
        first = brooq.enqueue(session, Job("first")).id
    side.start()
    eventually(lambda: len(attempts(exporter)) == 3)

    spans = {span.name: span for span in attempts(exporter)}
    context = spans["process first"].context
    assert context is not None
    for name in ("process second", "process third"):
        assert links(spans[name]) == [f"{context.trace_id:032x}-{context.span_id:016x}"]
    assert {job.meta.get("chained_by") for job in jobs(side.engine)} == {None, str(first)}


def test_a_span_ends_with_its_attempt_and_the_next_one_in_its_slot_knows_nothing_of_it(
    engine: Engine, make_queue: MakeQueue, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    queue = make_queue(engine, workers=1, prefetch=5)
    current: list[int] = []

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        current.append(get_current_span().get_span_context().span_id)
        # Entered and never left, as careless code does.
        provider.get_tracer("test").start_as_current_span("left open").__enter__()

    with engine.begin() as connection:
        brooq.enqueue_many(connection, [Job("t") for _ in range(6)])
    with Caller(provider):  # which the handlers inherit, as all that is in the context at the start
        queue.start()
    eventually(all_settled(engine))
    queue.close()

    assert [span.context.span_id for span in attempts(exporter) if span.context] == current
    assert all(span.parent is None for span in attempts(exporter))


def test_while_tracing_is_off_a_handler_has_no_span(
    engine: Engine, make_queue: MakeQueue, exporter: InMemorySpanExporter, caller: Caller
) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    with caller:
        queue.enqueue(Job("t"))
    brooq.tracing.disable()
    queue.start()
    eventually(all_settled(engine))
    queue.close()

    assert attempts(exporter) == []


# -- what can be wrong


@pytest.mark.parametrize(
    "noted",
    [
        "1",
        "[]",
        "null",
        "{}",
        '{"traceparent": 1}',
        '{"traceparent": null}',
        '{"traceparent": ["00"]}',
        '{"traceparent": "00-zz-zz-01"}',
        f'{{"traceparent": "00-{"0" * 32}-{SPAN}-01"}}',
        json.dumps({"traceparent": "0" * 100_000, "tracestate": "=" * 10_000}),
        f'{{"traceparent": {"9" * 5_000}}}',
        "[" * 6_000 + "]" * 6_000,
    ],
    ids=range(12),
)
def test_what_names_no_span_is_no_link(
    engine: Engine,
    make_queue: MakeQueue,
    exporter: InMemorySpanExporter,
    provider: Any,
    caplog: pytest.LogCaptureFixture,
    noted: str,
) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    insert(engine, "t", noted)
    queue.start()
    eventually(all_settled(engine))
    queue.close()

    (span,) = attempts(exporter)
    assert links(span) == []
    assert [line for line in caplog.records if line.levelno >= logging.WARNING and "brooq" in line.name] == []


def test_plain_sql_can_name_a_span(
    engine: Engine, make_queue: MakeQueue, exporter: InMemorySpanExporter, provider: Any
) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    insert(engine, "t", json.dumps({"traceparent": TRACEPARENT, "tracestate": "!"}))
    queue.start()
    eventually(all_settled(engine))
    queue.close()

    assert [links(span) for span in attempts(exporter)] == [[f"{TRACE}-{SPAN}"]]


class Broken(SpanProcessor):
    """
    Raises wherever it can.
    """

    def on_start(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no start")

    def on_end(self, *_: Any) -> None:
        raise RuntimeError("no end")


class BrokenAtEnd(Broken):
    def on_start(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize("processor", [Broken, BrokenAtEnd])
def test_tracing_that_fails_breaks_no_job_and_is_logged_once(
    make_side: MakeSide, processor: type[SpanProcessor], caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor())
    brooq.tracing.enable(provider)
    try:
        side = make_side()
        side.ordinary("t", lambda _: None)
        side.transactional("u", lambda *_: None)
        for topic in "ttuu":
            side.add(Job(topic))
        side.start()
        eventually(all_settled(side.engine))
    finally:
        brooq.tracing.disable()

    assert {job.state for job in jobs(side.engine)} == {"done"}
    assert [record.getMessage()[:20] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "OpenTelemetry raised"
    ]


def test_an_attempt_that_is_not_sampled_runs_as_ever(
    engine: Engine, make_queue: MakeQueue, exporter: InMemorySpanExporter
) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    brooq.tracing.enable(provider)
    try:
        queue = make_queue(engine)
        queue.register("t", lambda claim: claim.chain(Job("u")))
        queue.register("u", lambda claim: None)
        queue.enqueue(Job("t"))
        queue.start()
        eventually(lambda: len(jobs(engine)) == 2 and all_settled(engine)())
        queue.close()
    finally:
        brooq.tracing.disable()

    assert exporter.get_finished_spans() == ()
    noted = get_current_span(FORMAT.extract(jobs(engine)[1].meta)).get_span_context()
    assert noted.is_valid
    assert not noted.trace_flags.sampled


def test_nothing_of_opentelemetry_is_imported_until_it_is_enabled() -> None:
    script = (
        "import sys, sqlalchemy_brooq as brooq\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "brooq.tracing.enable()\n"
        "assert 'opentelemetry.trace' in sys.modules and not any('.sdk' in n for n in sys.modules if 'opentel' in n)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_opentelemetry_enabling_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sqlalchemy_brooq.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(ImportError, match=r"sqlalchemy-brooq\[otel\]"):
        brooq.tracing.enable()

    assert brooq.tracing.active is None


def test_enabling_without_a_provider_takes_the_global_one(engine: Engine) -> None:
    brooq.tracing.enable()
    try:
        with engine.begin() as connection:
            answer = brooq.enqueue(connection, Job("t"))
    finally:
        brooq.tracing.disable()

    assert answer == Enqueued(answer.id, created=True)


class SwitchedOffMeanwhile:
    """
    The switch, as another thread turns it off after each look at it that found it on.
    """

    def __init__(self) -> None:
        self._is_on = True

    @property
    def active(self) -> Any:
        was_on, self._is_on = self._is_on, not self._is_on
        return brooq.tracing.active if was_on else None


@pytest.mark.parametrize("module", ["unit_of_work", "bulk", "worker.running"])
def test_tracing_that_is_switched_off_meanwhile_breaks_nothing(
    engine: Engine, make_queue: MakeQueue, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(f"sqlalchemy_brooq.{module}.tracing", SwitchedOffMeanwhile())
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    with Session(engine) as session, session.begin():
        session.add(Job("t"))
        brooq.enqueue_many(session, [Job("t") for _ in range(3)])
    queue.start()

    eventually(all_settled(engine))
    assert [(found.state, found.attempts) for found in jobs(engine)] == [("done", 1)] * 4
