"""
Leases: kept while a handler works, told as lost when they are, and never written over.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from tests.queues import MakeQueue, add, all_settled, states
from tests.waiting import eventually, row

pytestmark = pytest.mark.usefixtures("engine_kind")


class Recorder:
    """
    A handler that goes on until it is interrupted or let go, plain or async, and remembers what it saw.
    """

    def __init__(self, *, heed: bool = True) -> None:
        self.started: list[brooq.Claim] = []
        self.causes: list[BaseException] = []
        self.leave = threading.Event()
        self.heed = heed
        self.ended = threading.Semaphore(0)

    def plain(self, claim: brooq.Claim) -> None:
        self.started.append(claim)
        try:
            while not self.leave.is_set():
                if self.heed:
                    claim.wait(0.01)
                else:
                    time.sleep(0.01)
        except brooq.Interruption as cause:
            self.causes.append(cause)
            raise
        finally:
            self.ended.release()

    async def coroutine(self, claim: brooq.Claim) -> None:
        self.started.append(claim)
        try:
            while not self.leave.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            assert claim.cause is not None
            self.causes.append(claim.cause)
            raise
        finally:
            self.ended.release()

    def of(self, kind: str) -> Callable[..., Any]:
        return self.plain if kind == "plain" else self.coroutine


both = pytest.mark.parametrize("kind", ["plain", "async"])


@both
def test_a_long_handler_keeps_its_lease(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine, lease="1s")
    queue.register("t", recorder.of(kind))
    queue.start()
    eventually(lambda: recorder.started)

    first = recorder.started[0].lease
    eventually(lambda: recorder.started[0].lease.until > first.until)
    eventually(
        lambda: row(engine, job_id)["locked_until"] > first.until + (first.until - row(engine, job_id)["claimed_at"])
    )
    recorder.leave.set()
    eventually(all_settled(engine))

    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"]) == ("done", 1, 0)
    assert recorder.causes == []


@both
def test_a_handler_hears_that_its_job_was_canceled_from_outside(
    engine: Engine, make_queue: MakeQueue, kind: str
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine, lease="1s", workers=1)
    queue.register("t", recorder.of(kind))
    queue.start()
    eventually(lambda: recorder.started)

    with Session(engine) as session, session.begin():
        assert brooq.cancel(session, job_id)
    canceled = dict(row(engine, job_id))

    assert recorder.ended.acquire(timeout=3)
    assert [type(cause) for cause in recorder.causes] == [brooq.LeaseLost]
    (other,) = add(engine, brooq.Job("t"))
    recorder.leave.set()
    eventually(lambda: row(engine, other)["state"] == "done")  # the slot is free
    assert dict(row(engine, job_id)) == canceled


def test_a_cancel_that_notifies_is_heard_long_before_the_heartbeat(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine, lease="10m")
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)

    with Session(engine) as session, session.begin():
        assert brooq.cancel(session, job_id)

    assert recorder.ended.acquire(timeout=5)
    assert isinstance(recorder.causes[0], brooq.LeaseLost)


def test_a_cancel_with_plain_sql_is_noticed_by_the_heartbeat(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine, lease="900ms", wakeup="poll")
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)

    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE job SET state = 'canceled', updated_at = now()"
                " WHERE id = :id AND state IN ('pending', 'failed', 'processing')"
            ),
            {"id": job_id},
        )

    assert recorder.ended.acquire(timeout=3)
    assert row(engine, job_id)["state"] == "canceled"


def test_a_canceled_waiting_job_never_runs(engine: Engine, make_queue: MakeQueue) -> None:
    canceled, other = add(engine, brooq.Job("t", 1), brooq.Job("t", 2))
    with Session(engine) as session, session.begin():
        assert brooq.cancel(session, canceled)
        assert not brooq.cancel(session, canceled)
    seen: list[object] = []
    queue = make_queue(engine)
    queue.register("t", lambda claim: seen.append(claim.payload))
    queue.start()

    eventually(all_settled(engine))
    assert seen == [2]
    assert row(engine, other)["state"] == "done"


def test_a_row_that_a_consumer_holds_delays_nobody_else(engine: Engine, make_queue: MakeQueue) -> None:
    ids = add(engine, *(brooq.Job("t", n) for n in range(4)))
    leave = threading.Event()
    started = threading.Barrier(5)

    def handle(claim: brooq.Claim) -> None:
        started.wait(10)
        while not leave.is_set():
            claim.wait(0.01)

    queue = make_queue(engine, lease="1500ms", reaper_period="50ms")
    queue.register("t", handle)
    queue.start()
    started.wait(10)

    with Session(engine) as session, session.begin():
        brooq.cancel(session, ids[0])  # and hold the row, beyond the lease
        first = {job_id: row(engine, job_id)["locked_until"] for job_id in ids[1:]}
        eventually(
            lambda: all(
                (row(engine, job_id)["locked_until"] - first[job_id]).total_seconds() > 1.5 for job_id in ids[1:]
            )
        )
        leave.set()
        eventually(lambda: states(engine) == {"done": 3, "processing": 1})

    eventually(lambda: states(engine) == {"done": 3, "canceled": 1})
    assert {row(engine, job_id)["attempts"] for job_id in ids} == {1}


def test_an_outcome_whose_row_is_held_is_written_once_the_holder_lets_go(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine)
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)

    with engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": job_id})
        recorder.leave.set()
        assert recorder.ended.acquire(timeout=5)
        threading.Event().wait(0.3)  # several tries of the pump's; nothing can be seen of them from outside
        assert row(engine, job_id)["state"] == "processing"

    eventually(all_settled(engine))
    assert row(engine, job_id)["attempts"] == 1


def test_a_heartbeat_that_fails_for_a_whole_lease_ends_in_a_lost_lease_and_nothing_written(
    engine: Engine, make_queue: MakeQueue
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder()
    queue = make_queue(engine, lease="600ms", reaper_period="1h")
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)

    with engine.begin() as connection:
        # Every statement of the worker's waits from now on, as on a frozen server.
        connection.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
        assert recorder.ended.acquire(timeout=5)

    assert isinstance(recorder.causes[0], brooq.LeaseLost)
    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["last_error"]) == ("processing", 1, None)


def test_an_execution_that_outlived_its_lease_can_not_touch_the_next_one(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    runs: list[brooq.Claim] = []
    first_may_end, second_may_end = threading.Event(), threading.Event()
    registry = CollectorRegistry()

    def handle(claim: brooq.Claim) -> None:
        runs.append(claim)
        if len(runs) == 1:
            first_may_end.wait(20)
            return
        second_may_end.wait(20)
        raise ValueError("B")

    queue = make_queue(engine, registry=registry, workers=2, lease="30s", backoff_base="1h", backoff_max="1h")
    queue.register("t", handle)
    queue.start()
    eventually(lambda: len(runs) == 1)
    with engine.begin() as connection:  # the lease runs out, unnoticed by its holder
        connection.execute(text("UPDATE job SET locked_until = now() - interval '1 s'"))

    eventually(lambda: len(runs) == 2)
    first_may_end.set()
    eventually(lambda: registry.get_sample_value("brooq_settle_total", {"topic": "t", "outcome": "lost"}) == 1)
    assert row(engine, job_id)["state"] == "processing"
    assert row(engine, job_id)["attempts"] == 2
    second_may_end.set()

    found = eventually(lambda: (r := row(engine, job_id))["state"] == "failed" and r)
    assert "B" in found["last_error"]
    assert registry.get_sample_value("brooq_settle_total", {"topic": "t", "outcome": "done"}) in (None, 0)


def test_a_graceful_drain_keeps_renewing(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder(heed=False)
    queue = make_queue(engine, lease="1s")
    queue.register("t", recorder.plain)
    other = make_queue(engine)  # its reaper would take the job if its lease ran out
    other.register("other", lambda claim: None)
    queue.start()
    other.start()
    eventually(lambda: recorder.started)
    stopping = threading.Thread(target=queue.stop)
    stopping.start()
    first = row(engine, job_id)["locked_until"]

    eventually(lambda: (row(engine, job_id)["locked_until"] - first).total_seconds() > 1.5)
    recorder.leave.set()
    stopping.join(10)

    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"]) == ("done", 1, 0)
