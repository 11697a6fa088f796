"""
Building, starting, stopping and closing a queue: in every order, and with nothing left over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Engine, StaticPool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.worker.engine import StopReport
from tests.programs import await_line, program
from tests.queues import MakeQueue, add, all_settled, quick, states
from tests.waiting import eventually, row


def clients(engine: Engine, name: str = "%") -> int:
    """
    Return how many clients the test's database has; within one transaction the answer would never change.
    """
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend' AND application_name LIKE :name"
            ),
            {"name": name},
        )
        return int(found.scalar_one())


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("brooq")}


def no_thread_called(patch: pytest.MonkeyPatch, *names: str) -> None:
    """
    Let the threads of these names not start, as where the system has no more of them.
    """
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        begin(thread)

    patch.setattr(threading.Thread, "start", start)


def test_importing_it_imports_no_driver_and_starts_nothing() -> None:
    code = """
        import sys, threading, signal
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        import sqlalchemy_brooq
        assert not {"psycopg", "psycopg2", "asyncpg", "sqlalchemy_brooq.demo"} & sys.modules.keys(), sys.modules.keys()
        assert threading.active_count() == 1
        assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], check=True)


def test_building_a_queue_touches_no_database_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE_WORKERS", "7")
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    before = threading.active_count()

    queue = brooq.Queue(engine, registry=CollectorRegistry())
    queue.register("t", lambda claim: None)

    assert queue.config.workers == 2
    assert queue.health() is None
    assert threading.active_count() == before
    queue.close()


def test_close_leaves_no_thread_and_no_connection(engine: Engine, database_url: URL, make_queue: MakeQueue) -> None:
    add(engine, *(brooq.Job("plain") for _ in range(20)), *(brooq.Job("async") for _ in range(20)))
    worker_engine = create_engine(database_url)
    queue = make_queue(worker_engine)

    @queue.handler("plain")
    def plain(claim: brooq.Claim) -> None:
        pass

    @queue.handler("async")
    async def coroutine(claim: brooq.Claim) -> None:
        await asyncio.sleep(0)

    with queue:
        eventually(all_settled(engine))
        assert our_threads()

    assert our_threads() == set()
    assert queue.health() is None
    worker_engine.dispose()
    eventually(lambda: clients(engine) == 1)


def test_stop_lets_a_running_handler_finish(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id, waiting) = add(engine, brooq.Job("t"), brooq.Job("t"))
    started, leave = threading.Event(), threading.Event()

    def handle(claim: brooq.Claim) -> None:
        started.set()
        leave.wait(10)

    queue = make_queue(engine, workers=1)
    queue.register("t", handle)
    queue.start()
    started.wait(10)
    threading.Timer(0.2, leave.set).start()

    report = queue.stop()

    assert report is not None
    assert report.clean
    assert row(engine, job_id)["state"] == "done"
    assert row(engine, waiting)["state"] == "pending"


def test_what_was_claimed_ahead_is_given_back_at_once(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, *(brooq.Job("t") for _ in range(6)))
    started, leave = threading.Event(), threading.Event()

    def handle(claim: brooq.Claim) -> None:
        started.set()
        leave.wait(10)

    queue = make_queue(engine, workers=1, prefetch=5)
    queue.register("t", handle)
    queue.start()
    started.wait(10)
    eventually(lambda: states(engine) == {"processing": 6})
    stopping = threading.Thread(target=queue.stop)
    stopping.start()

    eventually(lambda: states(engine) == {"processing": 1, "pending": 5})
    leave.set()
    stopping.join(10)

    with engine.connect() as connection:
        rows = connection.execute(text("SELECT state, attempts, requeues FROM job ORDER BY state")).all()
    assert [tuple(found) for found in rows] == [("done", 1, 0)] + [("pending", 0, 0)] * 5


def test_stop_and_close_are_harmless_in_any_order(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    assert queue.stop() is None
    queue.start()
    assert queue.stop() is not None
    assert queue.stop() is None
    queue.start()
    queue.close()
    queue.close()
    with pytest.raises(brooq.LifecycleError, match="closed"):
        queue.start()


def test_a_worker_has_a_new_identity_at_every_start(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    names = set()
    for _ in range(3):
        queue.start()
        health = queue.health()
        assert health is not None
        names.add(health.worker)
        queue.stop()

    assert len(names) == 3
    assert all(f":{os.getpid()}:" in name for name in names)


def test_starting_twice_is_an_error_and_changes_nothing(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.start()

    with pytest.raises(brooq.LifecycleError, match="running already"):
        queue.start()

    health = queue.health()
    assert health is not None
    assert health.healthy


def test_handlers_are_registered_once_and_before_start(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    with pytest.raises(brooq.RegistrationError, match="'t' has a handler already"):
        queue.register("t", lambda claim: None)
    queue.start()
    with pytest.raises(brooq.RegistrationError, match="before start"):
        queue.register("u", lambda claim: None)


def test_a_decorator_without_its_topic_is_refused(engine: Engine) -> None:
    queue: Any = brooq.Queue(engine)

    def send(claim: brooq.Claim) -> None: ...

    with pytest.raises(brooq.RegistrationError) as caught:
        queue.handler(send)

    assert str(caught.value) == 'write @queue.handler("topic") above send, with the topic that it handles'


@pytest.mark.parametrize(
    "function",
    [None, "text", lambda: None, lambda claim, session: None],
    ids=["None", "text", "takes nothing", "takes two"],
)
def test_a_function_that_can_not_take_a_claim_is_refused(
    engine: Engine, make_queue: MakeQueue, function: object
) -> None:
    with pytest.raises(brooq.RegistrationError, match="'t' refused"):
        make_queue(engine).register("t", function)  # type: ignore[arg-type]


def test_a_function_that_yields_is_refused(engine: Engine, make_queue: MakeQueue) -> None:
    def generator(claim: brooq.Claim) -> Iterator[None]:
        yield

    async def coroutine(claim: brooq.Claim) -> AsyncIterator[None]:
        yield

    for function in (generator, coroutine):
        with pytest.raises(brooq.RegistrationError, match="would never run"):
            make_queue(engine).register("t", function)


def test_a_transactional_handler_must_fit_its_engine(engine: Engine, database_url: URL, make_queue: MakeQueue) -> None:
    async def coroutine(claim: brooq.Claim, session: object) -> None: ...

    def plain(claim: brooq.Claim, session: object) -> None: ...

    transactional = brooq.HandlerOptions(transactional=True)
    with pytest.raises(brooq.RegistrationError, match="needs a queue with an AsyncEngine"):
        make_queue(engine).register("t", coroutine, transactional)
    with pytest.raises(brooq.RegistrationError, match="needs a queue with an Engine"):
        make_queue(create_async_engine(database_url)).register("t", plain, transactional)


@pytest.mark.parametrize("topic", ["", "UPPER", "a b", "ünï", "-a", "a" * 256, "t\x00", "%s", "x'; DROP TABLE job; --"])
def test_a_topic_outside_the_grammar_is_refused_at_register(engine: Engine, make_queue: MakeQueue, topic: str) -> None:
    with pytest.raises(brooq.InvalidJob, match="refused"):
        make_queue(engine).register(topic, lambda claim: None)


def test_a_missing_table_is_one_clear_error(empty_database_url: URL) -> None:
    engine = create_engine(empty_database_url)
    queue = brooq.Queue(engine, quick(), registry=CollectorRegistry())
    queue.register("t", lambda claim: None)

    with pytest.raises(brooq.SchemaMismatch, match="brooq-worker migrate") as caught:
        queue.start()

    assert "\n" not in str(caught.value)
    assert our_threads() == set()
    assert not list(engine.dialect.dispatch.do_connect)  # nothing is left on the consumer's engine
    queue.close()
    engine.dispose()


@pytest.mark.parametrize("name", ["brooq-loop", "brooq-hooks", "brooq-heartbeat", "brooq-sampler"])
def test_a_start_that_gets_no_thread_leaves_nothing_behind(
    database_url: URL, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    engine = create_engine(database_url)
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    queue.on("JobDone", lambda event: None)

    with monkeypatch.context() as patch:
        no_thread_called(patch, name)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            queue.start()

    assert our_threads() == set()
    assert not list(engine.dialect.dispatch.do_connect)
    queue.start()
    assert queue.stop() == StopReport(0, 0)
    engine.dispose()


def test_a_queue_that_is_being_closed_can_not_be_started_meanwhile(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, brooq.Job("t"))
    started, leave = threading.Event(), threading.Event()
    queue = make_queue(engine)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        started.set()
        leave.wait(10)

    queue.start()
    assert started.wait(10)
    with ThreadPoolExecutor(2) as pool:
        closing = pool.submit(queue.close)
        eventually(lambda: "closed" in repr(queue))
        starting = pool.submit(queue.start)
        leave.set()
        closing.result(10)
        with pytest.raises(brooq.LifecycleError, match="closed"):
            starting.result(10)

    assert our_threads() == set()


def test_only_postgresql_engines_are_taken() -> None:
    with pytest.raises(TypeError, match="sqlite"):
        brooq.Queue(create_engine("sqlite://"))
    with pytest.raises(TypeError, match="not str"):
        brooq.Queue("postgresql://")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [create_engine, create_async_engine])
def test_an_engine_that_has_one_connection_for_all_threads_is_refused_at_the_start(
    database_url: URL, make_queue: MakeQueue, make: Callable[..., Engine | AsyncEngine]
) -> None:
    engine = make(database_url, poolclass=StaticPool)
    queue = make_queue(engine)

    with pytest.raises(brooq.LifecycleError, match="StaticPool gives all threads the same connection"):
        queue.start()

    assert our_threads() == set()


def test_the_workers_own_connections_are_made_like_the_engines(database_url: URL, make_queue: MakeQueue) -> None:
    engine = create_engine(database_url, connect_args={"application_name": "shop"})
    connected: list[object] = []
    event.listen(engine, "connect", lambda connection, record: connected.append(connection))
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    with queue:
        eventually(lambda: clients(engine, "shop") >= 3)

    assert len(connected) >= 3
    engine.dispose()


def test_handlers_that_take_every_pooled_connection_stop_nothing(database_url: URL, make_queue: MakeQueue) -> None:
    engine = create_engine(database_url, pool_size=2, max_overflow=0, pool_timeout=0.5)
    add(engine, *(brooq.Job("t") for _ in range(4)))
    together = threading.Barrier(3)

    def handle(claim: brooq.Claim) -> None:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            together.wait(10)
            claim.wait(2.5)

    observer = create_engine(database_url)
    queue = make_queue(engine, workers=2, lease="1s")
    queue.register("t", handle)
    queue.start()
    together.wait(10)
    together.wait(20)
    eventually(all_settled(observer))

    with observer.connect() as connection:
        rows = connection.execute(text("SELECT state, attempts, requeues FROM job")).all()
    assert {tuple(found) for found in rows} == {("done", 1, 0)}
    queue.close()
    observer.dispose()
    engine.dispose()


# -- event loops


def test_inside_a_running_loop_async_handlers_run_in_it(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, brooq.Job("t"))
    loops: list[object] = []

    async def main() -> None:
        queue = make_queue(engine)

        @queue.handler("t")
        async def handle(claim: brooq.Claim) -> None:
            loops.append(asyncio.get_running_loop())

        async with queue:
            while not loops:
                await asyncio.sleep(0.01)
            with pytest.raises(brooq.LifecycleError, match="astop"):
                queue.stop()
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())
    assert states(engine) == {"done": 1}
    assert our_threads() == set()


def test_a_queue_whose_loop_ended_claims_nothing_and_is_not_healthy(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None: ...

    asyncio.run(queue.astart())  # and nobody awaits astop()
    add(engine, *(brooq.Job("t") for _ in range(3)))

    eventually(lambda: (h := queue.health()) is not None and not h.healthy)
    threading.Event().wait(0.3)  # several polls: nothing to wait for, since nothing may happen
    assert states(engine) == {"pending": 3}
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT max(attempts) FROM job")) == 0
    queue.stop()


def test_an_async_engine_runs_plain_and_async_handlers(
    engine: Engine, async_engine_url: URL, make_queue: MakeQueue
) -> None:
    add(engine, *(brooq.Job(topic) for topic in ("plain", "async") for _ in range(10)))
    seen: list[str] = []

    async def main() -> None:
        async_engine = create_async_engine(async_engine_url)
        queue = make_queue(async_engine)

        @queue.handler("plain")
        def plain(claim: brooq.Claim) -> None:
            seen.append(claim.topic)

        @queue.handler("async")
        async def coroutine(claim: brooq.Claim) -> None:
            async with async_engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
            seen.append(claim.topic)

        async with queue:
            while len(seen) < 20:
                await asyncio.sleep(0.01)
        await async_engine.dispose()

    asyncio.run(main())
    assert states(engine) == {"done": 20}


def test_a_handler_that_blocks_its_loop_keeps_its_lease(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, lease="1s")

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        time.sleep(2.5)  # noqa: ASYNC251 - the fault itself

    queue.start()
    eventually(all_settled(engine))

    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"]) == ("done", 1, 0)


# -- run()

RUN = """
    import logging, signal, sys, time
    import sqlalchemy as sa
    import sqlalchemy_brooq as brooq

    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    queue = brooq.Queue(sa.create_engine(sys.argv[1]), brooq.Config(poll_interval="50ms", shutdown_grace=sys.argv[2]))

    @queue.handler("t")
    def handle(claim):
        print("started", flush=True)
        claim.wait(30)

    before = signal.getsignal(signal.SIGTERM)
    report = queue.run()
    assert signal.getsignal(signal.SIGTERM) is before
    print(report, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_gives_interrupted_jobs_back_and_ends(engine: Engine, database_url: URL, number: signal.Signals) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    with program(RUN, database_url, "100ms") as process:
        await_line(process, "started")
        process.send_signal(number)
        out, _ = process.communicate(timeout=15)

    assert process.returncode == 0
    assert "abandoned=0" in out
    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"], found["last_error"]) == ("pending", 0, 0, None)


def test_a_second_signal_ends_the_grace_period(engine: Engine, database_url: URL) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    with program(RUN, database_url, "10m") as process:
        await_line(process, "started")
        process.send_signal(signal.SIGTERM)
        await_line(process, "is stopping")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=15)

    assert process.returncode == 0
    assert row(engine, job_id)["state"] == "pending"


def test_run_is_for_the_main_thread(engine: Engine, make_queue: MakeQueue) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            make_queue(engine).run()
        except brooq.LifecycleError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)

    assert "main thread" in str(errors[0])
