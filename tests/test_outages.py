"""
Outages of the database: the same process goes on, says little, and catches up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from sqlalchemy_brooq.worker.loops import Loop
from tests.queues import MakeQueue, add, all_settled, states
from tests.waiting import eventually, row


@pytest.fixture
def engine(postgres_server: LocalPostgres) -> Iterator[Engine]:
    migrate(postgres_server.url())
    engine = create_engine(postgres_server.url(), pool_pre_ping=True)
    yield engine
    engine.dispose()


TERMINATE = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


def is_healthy(queue: brooq.Queue) -> bool:
    health = queue.health()
    assert health is not None
    return health.healthy


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_worker_outlives_a_server_that_is_away_and_catches_up(
    postgres_server: LocalPostgres,
    engine: Engine,
    make_queue: MakeQueue,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    (running,) = add(engine, brooq.Job("long"))
    started, leave = threading.Event(), threading.Event()
    queue = make_queue(engine, lease="60s")

    @queue.handler("long")
    def long(claim: brooq.Claim) -> None:
        started.set()
        leave.wait(60)

    queue.register("quick", lambda claim: None)
    queue.start()
    started.wait(10)

    postgres_server.stop(mode)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        eventually(lambda: not is_healthy(queue), timeout=5)
        leave.set()  # its outcome can't be written now, and must not be lost
        caplog.clear()
        threading.Event().wait(10)  # the outage itself
        lines = len(caplog.records)
    postgres_server.start()
    ids = add(engine, *(brooq.Job("quick") for _ in range(5)))

    eventually(lambda: all(row(engine, job_id)["state"] == "done" for job_id in ids), timeout=5)
    eventually(lambda: is_healthy(queue), timeout=5)
    found = eventually(lambda: (r := row(engine, running))["state"] == "done" and r, timeout=5)
    assert (found["attempts"], found["requeues"]) == (1, 0)
    assert lines <= 50


def test_a_storm_of_terminated_connections_loses_nothing(engine: Engine, make_queue: MakeQueue) -> None:
    ids = add(engine, *(brooq.Job("t", n) for n in range(300)))
    runs: list[UUID] = []
    queue = make_queue(engine, workers=8, lease="2s")

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        claim.wait(0.02)
        runs.append(claim.id)

    queue.start()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not all_settled(engine)():
            connection.execute(TERMINATE)
            threading.Event().wait(0.1)

    assert states(engine) == {"done": 300}
    assert set(runs) == set(ids)
    eventually(lambda: is_healthy(queue), timeout=5)


def test_a_read_only_database_is_an_outage_like_any_other(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    queue.start()
    admin = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        add(engine, brooq.Job("t"))
        eventually(all_settled(engine))
        # Every session from now on is as on a standby; those that are open are closed.
        connection.execute(text("ALTER ROLE postgres SET default_transaction_read_only = on"))
        connection.execute(TERMINATE)
        eventually(lambda: not is_healthy(queue), timeout=10)
        connection.execute(text("SET default_transaction_read_only = off"))
        connection.execute(text("ALTER ROLE postgres RESET default_transaction_read_only"))
        connection.execute(text("INSERT INTO job (topic) VALUES ('t')"))

    eventually(lambda: states(admin) == {"done": 2}, timeout=5)
    eventually(lambda: is_healthy(queue), timeout=5)
    admin.dispose()


def test_a_claim_whose_answer_was_lost_is_given_back_at_once(engine: Engine, make_queue: MakeQueue) -> None:
    """
    The statement committed, and nobody here knows of its jobs: without help they would wait for their lease's end.
    """
    add(engine, *(brooq.Job("t") for _ in range(4)))
    queue = make_queue(engine, workers=4, lease="10m")
    queue.register("t", lambda claim: None)
    lose_next_answer(queue)

    queue.start()

    eventually(all_settled(engine), timeout=5)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT DISTINCT attempts, requeues FROM job")).all() == [(1, 0)]


def test_an_outcome_whose_answer_was_lost_is_counted_as_written(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, workers=1, lease="10m")

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        lose_next_answer(queue)

    queue.start()

    eventually(all_settled(engine), timeout=5)
    done = {"topic": "t", "outcome": "done"}
    eventually(lambda: queue.metrics.registry.get_sample_value("brooq_settle_total", done) == 1)
    assert queue.metrics.registry.get_sample_value("brooq_settle_total", {"topic": "t", "outcome": "lost"}) == 0
    assert row(engine, job_id)["attempts"] == 1


def lose_next_answer(queue: brooq.Queue) -> None:
    """
    Let the next statement of the pump's that changes a row commit, and its answer be lost on the way.
    """
    from sqlalchemy import event

    source = queue._plain_source()

    def lose(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "claimed AS" in statement or "settled AS" in statement:
            cursor_rows = getattr(cursor, "rowcount", 0)
            if cursor_rows:
                event.remove(source, "after_cursor_execute", lose)
                raise ConnectionError("the answer is lost")

    event.listen(source, "after_cursor_execute", lose)


def test_a_body_that_raises_once_is_called_again() -> None:
    rounds: list[int] = []

    def body() -> float:
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("once")
        return 10.0

    loop = Loop("test", body, period=10.0)
    loop.start()
    try:
        eventually(lambda: len(rounds) == 2 and loop.health().healthy)
    finally:
        loop.stop()
        loop.join(5)


def test_a_body_that_always_raises_is_never_healthy_for_long() -> None:
    def body() -> float:
        raise ValueError("always")

    loop = Loop("test", body, period=10.0)
    loop.start()
    try:
        eventually(lambda: not loop.health().healthy)
        assert loop.health().alive
    finally:
        loop.stop()
        loop.join(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_whose_thread_died_is_not_healthy() -> None:
    def body() -> float:
        raise GeneratorExit

    loop = Loop("test", body, period=10.0)
    loop.start()

    assert loop.join(5)
    assert not loop.health().healthy
    assert not loop.health().alive
