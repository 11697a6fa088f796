"""
Timeouts, the watchdog and the causes of an interruption: whose timeout it was, and what it means for the job.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

import sqlalchemy_brooq as brooq
from tests.queues import MakeQueue, add, all_settled
from tests.test_leases import Recorder
from tests.waiting import eventually, row

pytestmark = pytest.mark.usefixtures("engine_kind")
both = pytest.mark.parametrize("kind", ["plain", "async"])


@both
def test_an_attempt_that_runs_too_long_is_interrupted_and_fails(
    engine: Engine, make_queue: MakeQueue, kind: str
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine, attempt_timeout="200ms", max_attempts=1)
    queue.register("t", recorder.of(kind))

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert found["state"] == "dead"
    assert found["last_error"] == "AttemptTimeout: the attempt ran for its attempt_timeout of 200ms"
    assert [type(cause) for cause in recorder.causes] == [brooq.AttemptTimeout]


@both
def test_a_handlers_own_timeout_error_is_its_own(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=1)

    def plain(claim: brooq.Claim) -> None:
        raise TimeoutError("remote api")

    async def coroutine(claim: brooq.Claim) -> None:
        async with asyncio.timeout(0.05):
            await asyncio.sleep(10)

    queue.register("t", plain if kind == "plain" else coroutine)
    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["last_error"].startswith("TimeoutError")


def test_an_async_handler_that_swallows_its_interruption_and_returns_has_succeeded(
    engine: Engine, make_queue: MakeQueue
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, attempt_timeout="100ms")

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["attempts"]) == ("done", 1)


def test_a_timeout_inside_a_handler_that_it_catches_itself_changes_nothing(
    engine: Engine, make_queue: MakeQueue
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine)

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        try:
            async with asyncio.timeout(0.02):
                await asyncio.sleep(10)
        except TimeoutError:
            await asyncio.sleep(0.05)

    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["state"] == "done"


def test_a_canceled_child_of_the_handler_is_an_ordinary_failure(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=1)

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        child = asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        child.cancel()
        await child

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["last_error"]) == ("dead", "CancelledError")


def test_another_exception_after_a_timeout_is_recorded_as_what_it_is(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, attempt_timeout="100ms", max_attempts=1)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        try:
            claim.wait(10)
        except brooq.AttemptTimeout:
            raise ConnectionError("half-way") from None

    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["last_error"] == "ConnectionError: half-way"


def test_a_deaf_handler_that_returns_late_is_done_and_was_told_and_counted_as_hung(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    deaf, other = add(engine, brooq.Job("deaf"), brooq.Job("other"))
    recorder = Recorder(heed=False)
    queue = make_queue(
        engine, registry=registry, workers=2, attempt_timeout="100ms", watchdog_grace="200ms", lease="1s"
    )
    queue.register("deaf", recorder.plain)
    queue.register("other", lambda claim: None)
    queue.start()
    eventually(lambda: row(engine, other)["state"] == "done")

    eventually(lambda: registry.get_sample_value("brooq_hung_workers_total", {"topic": "deaf"}) == 1)
    health = queue.health()
    assert health is not None
    assert (health.healthy, health.hung) == (True, 1)
    first = row(engine, deaf)["locked_until"]
    eventually(lambda: (row(engine, deaf)["locked_until"] - first).total_seconds() > 1)
    recorder.leave.set()
    eventually(all_settled(engine))

    found = row(engine, deaf)
    assert (found["state"], found["attempts"], found["requeues"]) == ("done", 1, 0)
    told = [getattr(record, "event", None) for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["AttemptTimedOut", "HandlerHung"]


@both
def test_the_ceiling_is_written_while_a_deaf_handler_goes_on(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    ends: list[int] = []
    leave = threading.Event()

    def plain(claim: brooq.Claim) -> None:
        if claim.attempt == 1:
            leave.wait(20)
            ends.append(claim.attempt)

    async def coroutine(claim: brooq.Claim) -> None:
        while claim.attempt == 1 and not leave.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        if claim.attempt == 1:
            ends.append(claim.attempt)

    queue = make_queue(engine, workers=2, attempt_timeout="100ms", max_execution_timeout="300ms")
    queue.register("t", plain if kind == "plain" else coroutine)
    queue.start()

    found = eventually(lambda: (r := row(engine, job_id))["state"] == "done" and r)
    assert found["attempts"] == 2
    assert found["last_error"].startswith("MaxExecutionExceeded: ")
    assert ends == []
    leave.set()
    eventually(lambda: ends == [1])
    eventually(lambda: (h := queue.health()) is not None and h.leases == 0 and h.healthy)
    assert row(engine, job_id) == found  # its late return wrote nothing


def test_the_ceiling_on_the_last_attempt_is_the_end(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder(heed=False)
    queue = make_queue(engine, attempt_timeout="50ms", max_execution_timeout="100ms", max_attempts=1)
    queue.register("t", recorder.plain)
    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["state"] == "dead"
    recorder.leave.set()


def test_all_slots_hung_is_unhealthy(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, brooq.Job("t"), brooq.Job("t"))
    recorder = Recorder(heed=False)
    queue = make_queue(engine, workers=2, attempt_timeout="50ms", watchdog_grace="50ms")
    queue.register("t", recorder.plain)
    queue.start()

    eventually(lambda: (h := queue.health()) is not None and h.hung == 2 and not h.healthy)
    recorder.leave.set()
    eventually(lambda: (h := queue.health()) is not None and h.healthy)


def test_with_interrupt_raise_a_computing_handler_is_interrupted(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id, other) = add(engine, brooq.Job("t"), brooq.Job("other"))
    queue = make_queue(engine, workers=1, attempt_timeout="100ms", max_attempts=1)

    def compute(claim: brooq.Claim) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pass

    queue.register("t", compute, brooq.HandlerOptions(interrupt="raise"))
    queue.register("other", lambda claim: None)
    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["last_error"].partition(":")[0]) == ("dead", "AttemptTimeout")
    assert row(engine, other)["state"] == "done"


def test_an_interruption_is_not_eaten_by_except_exception(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, attempt_timeout="100ms", max_attempts=1)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> Any:
        try:
            claim.wait(10)
        except Exception:
            return "eaten"
        return None

    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["last_error"].startswith("AttemptTimeout")


def test_the_lease_may_be_shorter_than_the_attempt(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, lease="1s")
    queue.register("t", lambda claim: claim.wait(2.5))

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["attempts"]) == ("done", 1)
