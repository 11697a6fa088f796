"""
Callbacks of events: they hear of everything, and can neither block nor break the engine.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, text

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.vocabulary import Event
from sqlalchemy_brooq.worker import journal
from sqlalchemy_brooq.worker.hooks import Hooks
from sqlalchemy_brooq.worker.journal import Journal
from tests.queues import MakeQueue, add, all_settled
from tests.waiting import eventually, row

EVENTS = [event.value for event in Event]


def event(n: int = 1, name: Event = Event.DONE) -> brooq.JobEvent:
    return brooq.JobEvent(name, new_id(), "t", n)


def listening(queue: brooq.Queue) -> list[brooq.JobEvent]:
    """
    Return a list to which every event of *queue* is added.
    """
    heard: list[brooq.JobEvent] = []
    for name in EVENTS:
        queue.on(name, heard.append)
    return heard


def test_each_event_of_a_job_is_told_in_order(engine: Engine, make_queue: MakeQueue, engine_kind: str) -> None:
    queue = make_queue(engine, max_attempts=2)
    heard = listening(queue)

    @queue.handler("ok")
    def succeed(claim: brooq.Claim) -> None: ...

    @queue.handler("bad")
    async def fail(claim: brooq.Claim) -> None:
        raise ValueError("no")

    @queue.handler("off")
    def call_off(claim: brooq.Claim) -> None:
        raise brooq.CancelJob

    jobs = {topic: brooq.Job(topic, {"card": "4111"}) for topic in ("ok", "bad", "off")}
    add(engine, *jobs.values())
    with queue:
        eventually(all_settled(engine))
        eventually(lambda: len(heard) == 8)

    def told(topic: str) -> list[tuple[str, int, str | None]]:
        assert all(one.job_id == jobs[topic].id for one in heard if one.topic == topic)
        return [(one.event, one.attempt, one.error) for one in heard if one.topic == topic]

    assert told("ok") == [("JobClaimed", 1, None), ("JobDone", 1, None)]
    assert told("off") == [("JobClaimed", 1, None), ("JobCanceled", 1, "CancelJob")]
    assert told("bad") == [
        ("JobClaimed", 1, None),
        ("JobFailed", 1, "ValueError: no"),
        ("JobClaimed", 2, None),
        ("JobDead", 2, "ValueError: no"),
    ]


def test_a_requeue_is_told_by_a_shutdown_and_by_the_reaper(engine: Engine, make_queue: MakeQueue) -> None:
    job, expired = brooq.Job("t"), brooq.Job("elsewhere")
    add(engine, job, expired)
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE job SET state = 'processing', locked_by = 'gone', claimed_at = now(), attempts = 3,"
                " locked_until = now() - interval '1s' WHERE topic = 'elsewhere'"
            )
        )
    queue = make_queue(engine, shutdown_grace="0", workers=1)
    heard = listening(queue)
    started = threading.Event()

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        started.set()
        claim.wait(60)

    queue.start()
    assert started.wait(10)
    eventually(lambda: row(engine, expired.id)["state"] == "pending")
    queue.stop()

    requeued = {(one.topic, one.job_id, one.attempt) for one in heard if one.event == "JobRequeued"}
    assert requeued == {("t", job.id, 1), ("elsewhere", expired.id, 3)}


def test_a_job_that_died_of_expired_leases_is_told_as_dead(engine: Engine, make_queue: MakeQueue) -> None:
    job = brooq.Job("t")
    add(engine, job)
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE job SET state = 'processing', locked_by = 'gone', claimed_at = now(), attempts = 2,"
                " requeues = 1, locked_until = now() - interval '1s'"
            )
        )
    queue = make_queue(engine, max_requeues=1)
    heard = listening(queue)
    queue.register("t", lambda claim: None)
    with queue:
        eventually(lambda: row(engine, job.id)["state"] == "dead")
        eventually(lambda: heard)

    assert [(one.event, one.job_id, one.attempt) for one in heard] == [("JobDead", job.id, 2)]


def test_a_callback_that_hangs_holds_up_no_job_and_not_the_end(
    engine: Engine, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.worker.engine.JOIN", 0.2)
    never = threading.Event()
    queue = make_queue(engine)
    queue.on("JobDone", lambda _: never.wait(60))
    queue.register("t", lambda claim: None)
    add(engine, *(brooq.Job("t") for _ in range(20)))
    queue.start()
    eventually(all_settled(engine))

    report = queue.stop()

    never.set()
    assert report is not None
    assert report.clean


def test_a_callback_that_raises_is_logged_and_the_next_one_is_called(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    def fall(_: brooq.JobEvent) -> None:
        raise SystemExit("over my dead body")

    queue = make_queue(engine)
    heard: list[brooq.JobEvent] = []
    queue.on("JobDone", fall)
    queue.on("JobDone", heard.append)
    queue.register("t", lambda claim: None)
    add(engine, brooq.Job("t"), brooq.Job("t"))
    with queue:
        eventually(lambda: len(heard) == 2)

    said = [record for record in caplog.records if getattr(record, "event", "") == "CallbackRaised"]
    assert [vars(record)["topic"] for record in said] == ["t", "t"]
    assert "SystemExit: over my dead body" in said[0].getMessage()


def test_a_callback_may_stop_the_queue(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    stopped = threading.Event()

    def end(_: brooq.JobEvent) -> None:
        queue.stop()
        stopped.set()

    queue.on("JobDone", end)
    queue.register("t", lambda claim: None)
    add(engine, brooq.Job("t"))
    queue.start()

    assert stopped.wait(10)
    assert queue.health() is None


def test_a_queue_that_starts_again_tells_again(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    heard: list[brooq.JobEvent] = []
    queue.on("JobDone", heard.append)
    queue.register("t", lambda claim: None)
    for n in (1, 2):
        add(engine, brooq.Job("t"))
        queue.start()
        eventually(all_settled(engine))
        queue.stop()
        assert len(heard) == n


def test_events_that_find_no_room_are_dropped_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def wait(_: brooq.JobEvent) -> None:
        begun.set()
        go.wait(10)

    hooks = Hooks({Event.DONE: [wait]}, dropped.append, capacity=4)
    hooks.start()
    hooks.put(event())
    assert begun.wait(10)
    for n in range(10):
        hooks.put(event(n))
    assert dropped == ["JobDone"] * 6
    go.set()
    hooks.stop(10)

    assert [record.getMessage() for record in caplog.records] == [
        "4 events wait for slow callbacks: until there is room again, further ones are dropped",
        "6 events were dropped: callbacks are slower than the jobs",
    ]


def test_what_waits_at_the_end_is_told_within_its_time_and_then_dropped() -> None:
    heard: list[int] = []
    dropped: list[str] = []
    hooks = Hooks({Event.DONE: [lambda one: heard.append(one.attempt)]}, dropped.append)
    for n in range(3):
        hooks.put(event(n))
    hooks.start()
    hooks.stop(10)
    assert (heard, dropped) == ([0, 1, 2], [])

    never = threading.Event()
    stuck = Hooks({Event.DONE: [lambda _: never.wait(10)]}, dropped.append)
    stuck.start()
    stuck.put(event())
    eventually(lambda: not stuck._waiting)
    stuck.put(event())
    stuck.stop(0.01)
    never.set()
    assert dropped == ["JobDone"]


def test_a_queue_without_callbacks_has_no_thread_for_them(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    with queue:
        assert "brooq-hooks" not in {thread.name for thread in threading.enumerate()}


def test_what_nobody_listens_to_is_not_put_into_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Quiet:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    def fail(*_: object) -> None:
        raise AssertionError("it was put into words")

    monkeypatch.setattr(journal, "JobEvent", fail)
    claim: Any = type("Claim", (), {"topic": "t", "id": new_id(), "attempt": 1})()
    hooks = Hooks({Event.DEAD: [print]})
    with caplog.at_level(logging.ERROR, "sqlalchemy_brooq.worker"):
        Journal(Quiet(), hooks).claimed([claim] * 3)

    with caplog.at_level(logging.DEBUG, "sqlalchemy_brooq.worker"), pytest.raises(AssertionError):
        Journal(Quiet(), hooks).claimed([claim])


@pytest.mark.parametrize(
    ("name", "callback", "fault"),
    [
        ("JobDaed", print, "there is no event 'JobDaed', did you mean JobDead?: it is one of JobClaimed, "),
        ("done", print, "there is no event 'done'"),
        (None, print, "there is no event None"),
        ("JobDead", "mail me", "'mail me' is not a function"),
    ],
)
def test_an_unknown_event_and_what_is_no_function_are_refused(
    engine: Engine, make_queue: MakeQueue, name: Any, callback: Any, fault: str
) -> None:
    with pytest.raises(brooq.RegistrationError) as refusal:
        make_queue(engine).on(name, callback)

    assert fault in str(refusal.value)


def test_an_async_callback_is_refused_with_the_way_out(engine: Engine, make_queue: MakeQueue) -> None:
    async def callback(_: brooq.JobEvent) -> None: ...

    with pytest.raises(brooq.RegistrationError, match="run_coroutine_threadsafe"):
        make_queue(engine).on("JobDead", callback)


def test_a_callback_after_start_is_refused(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, registry=CollectorRegistry())
    with queue, pytest.raises(brooq.RegistrationError, match=r"before start\(\)"):
        queue.on("JobDead", print)
