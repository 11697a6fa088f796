"""
Shutting down: what finishes is settled, what obeys is given back, what ignores it keeps its lease.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import URL, Engine, text

import sqlalchemy_brooq as brooq
from tests.programs import await_line, program
from tests.queues import MakeQueue, add, all_settled, states
from tests.test_leases import Recorder
from tests.waiting import eventually, row

pytestmark = pytest.mark.usefixtures("engine_kind")
both = pytest.mark.parametrize("kind", ["plain", "async"])


@both
def test_an_interrupted_handler_that_obeys_is_given_back_as_if_nothing_had_been(
    engine: Engine, make_queue: MakeQueue, kind: str
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    before = row(engine, job_id)
    recorder = Recorder()
    queue = make_queue(engine, shutdown_grace="50ms")
    queue.register("t", recorder.of(kind))
    queue.start()
    eventually(lambda: recorder.started)

    report = queue.stop()

    assert report is not None
    assert report.clean
    assert [type(cause) for cause in recorder.causes] == [brooq.Shutdown]
    after = row(engine, job_id)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"claimed_at", "updated_at"}


def test_an_interrupted_handler_that_returns_has_succeeded(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    started = threading.Event()
    queue = make_queue(engine, shutdown_grace="50ms")

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        started.set()
        while not claim.interrupted:
            threading.Event().wait(0.01)

    queue.start()
    started.wait(10)
    queue.stop()

    assert row(engine, job_id)["state"] == "done"


def test_a_handler_that_ignores_the_shutdown_keeps_its_lease_and_is_named(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    recorder = Recorder(heed=False)
    queue = make_queue(engine, shutdown_grace="50ms", lease="2s")
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)

    report = queue.stop()

    assert report is not None
    assert (report.abandoned, report.clean) == (1, False)
    assert str(job_id) in caplog.text
    found = row(engine, job_id)
    assert (found["state"], found["attempts"]) == ("processing", 1)
    other = make_queue(engine)
    other.register("t", lambda claim: None)
    other.start()
    eventually(all_settled(engine))  # its lease ran out by itself
    assert row(engine, job_id)["requeues"] == 1
    recorder.leave.set()
    assert recorder.ended.acquire(timeout=5)
    assert row(engine, job_id)["attempts"] == 2
    eventually(lambda: queue.metrics.registry.get_sample_value("brooq_worker_busy", {"topic": "t"}) == 0)


def test_a_handler_that_stops_its_own_queue_is_told_why_it_can_not(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=1)
    queue.register("t", lambda claim: queue.stop())
    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["last_error"].startswith("LifecycleError: stop() in a handler")


def test_a_worker_that_drains_can_still_be_asked_how_it_is(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, brooq.Job("t"))
    recorder = Recorder(heed=False)
    queue = make_queue(engine)
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)
    stopping = threading.Thread(target=queue.stop)
    stopping.start()

    health = queue.health()
    recorder.leave.set()
    stopping.join(10)

    assert health is not None
    assert health.healthy
    assert queue.health() is None


def test_two_stops_at_once_both_return_when_it_is_over(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, brooq.Job("t"))
    recorder = Recorder(heed=False)
    queue = make_queue(engine)
    queue.register("t", recorder.plain)
    queue.start()
    eventually(lambda: recorder.started)
    threads = [threading.Thread(target=queue.stop) for _ in range(2)]

    for thread in threads:
        thread.start()
    assert all(thread.is_alive() for thread in threads)
    recorder.leave.set()
    for thread in threads:
        thread.join(10)

    assert not any(thread.is_alive() for thread in threads)
    assert states(engine) == {"done": 1}


def test_in_the_consumers_loop_jobs_are_given_back_too(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, *(brooq.Job("t") for _ in range(3)))
    recorder = Recorder()

    async def main() -> None:
        queue = make_queue(engine, shutdown_grace="50ms")
        queue.register("t", recorder.coroutine)
        async with queue:
            while len(recorder.started) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(main())

    assert states(engine) == {"pending": 3}
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT max(attempts) FROM job")) == 0


IGNORING = """
    import sys, time
    import sqlalchemy as sa
    import sqlalchemy_brooq as brooq

    queue = brooq.Queue(sa.create_engine(sys.argv[1]), brooq.Config(shutdown_grace="50ms"))

    @queue.handler("t")
    {prefix}def handle(claim):
        print("started", flush=True)
        while True:
            try:
                {sleep}
            except BaseException:
                pass

    print(queue.run().abandoned, flush=True)
"""


@pytest.mark.parametrize(
    ("prefix", "sleep"),
    [("", "time.sleep(0.01)"), ("async ", "await __import__('asyncio').sleep(0.01)"), ("async ", "time.sleep(1000)")],
    ids=["plain", "async", "blocked loop"],
)
def test_a_handler_that_ignores_everything_does_not_keep_the_process_alive(
    engine: Engine, database_url: URL, prefix: str, sleep: str
) -> None:
    add(engine, brooq.Job("t"))
    with program(IGNORING.format(prefix=prefix, sleep=sleep), database_url) as process:
        await_line(process, "started")
        process.terminate()
        out, _ = process.communicate(timeout=20)

    assert (process.returncode, out) == (0, "1\n")
    assert states(engine) == {"processing": 1}
