"""
Odd rows, odd surroundings and odd moments: each is settled somehow, and nothing else suffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event, text

import sqlalchemy_brooq as brooq
from tests.queues import MakeQueue, add, all_settled, states
from tests.waiting import eventually, row

ODD = {
    "long ago": "available_at = '-infinity'",
    "before Christ": "available_at = '0044-03-15 BC'",
    "created never": "created_at = 'infinity'",
    "created far ahead": "created_at = '20000-01-01'",
    "too often tried": "attempts = 2147483647",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_row_that_plain_sql_made_odd_stops_nobody(engine: Engine, make_queue: MakeQueue, odd: str) -> None:
    add(engine, brooq.Job("odd"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE job SET {odd}"))
    add(engine, *(brooq.Job("t") for _ in range(5)))
    queue = make_queue(engine)
    for topic in ("odd", "t"):
        queue.register(topic, lambda claim: None)

    queue.start()

    eventually(all_settled(engine))
    assert states(engine) == {"done": 6}


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_surroundings_that_swallow_are_a_failure_that_says_so(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=1, options={"around": lambda: contextlib.suppress(ValueError)})

    def plain(claim: brooq.Claim) -> None:
        raise ValueError("swallowed")

    async def coroutine(claim: brooq.Claim) -> None:
        raise ValueError("swallowed")

    queue.register("t", plain if kind == "plain" else coroutine)
    queue.start()

    eventually(all_settled(engine))
    assert "around swallowed" in row(engine, job_id)["last_error"]


class Raising(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if "attempt 1 raised" in record.getMessage():
            raise RuntimeError("a filter of the consumer's")
        return True


@pytest.fixture
def raising_filter() -> Iterator[None]:
    logger, hostile = logging.getLogger("sqlalchemy_brooq.worker"), Raising()
    logger.addFilter(hostile)
    yield
    logger.removeFilter(hostile)


@pytest.mark.usefixtures("raising_filter")
def test_a_log_filter_that_raises_loses_no_outcome(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=1)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        raise ValueError("no")

    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["last_error"] == "ValueError: no"


def test_a_task_of_a_handlers_own_that_exits_does_not_end_the_loop(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, brooq.Job("t", 1), brooq.Job("t", 2))
    queue = make_queue(engine, workers=1)

    async def leaving() -> None:
        raise SystemExit(3)

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        if claim.payload == 1:
            task = asyncio.ensure_future(leaving())
            task.add_done_callback(lambda task: task.exception())
            await asyncio.sleep(0.05)

    queue.start()

    eventually(all_settled(engine))
    assert states(engine) == {"done": 2}
    health = queue.health()
    assert health is not None
    assert health.healthy


@pytest.mark.parametrize("prefetch", [0, 5])
def test_a_claim_that_is_under_way_when_the_worker_stops_is_given_back(
    engine: Engine, make_queue: MakeQueue, prefetch: int
) -> None:
    queue = make_queue(engine, workers=4, prefetch=prefetch, poll_interval="10m", wakeup="poll")
    ran: list[object] = []
    queue.register("t", lambda claim: ran.append(claim.id))
    under_way, go_on = threading.Event(), threading.Event()

    def late(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "picked AS" in statement and getattr(cursor, "rowcount", 0) > 0:
            under_way.set()
            go_on.wait(10)

    event.listen(engine, "after_cursor_execute", late)
    queue.start()
    add(engine, *(brooq.Job("t") for _ in range(20)))  # a commit in this process: the pump looks at once
    assert under_way.wait(10)
    stopping = threading.Thread(target=queue.stop)
    stopping.start()
    go_on.set()
    stopping.join(20)
    event.remove(engine, "after_cursor_execute", late)

    with engine.connect() as connection:
        rows = connection.execute(text("SELECT DISTINCT state, attempts FROM job")).all()
    assert {tuple(found) for found in rows} <= {("pending", 0), ("done", 1)}
    assert states(engine).get("done", 0) == len(ran)


def test_a_worker_that_another_thread_stops_ends_its_run(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    report = queue.run(ready=lambda: threading.Thread(target=queue.stop).start())

    assert report.clean
    assert queue.health() is None


def test_an_outcome_that_the_database_refuses_for_good_is_given_up(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    (refused, fine) = add(engine, brooq.Job("refused"), brooq.Job("fine"))
    with engine.begin() as connection:
        connection.execute(
            text(
                "ALTER TABLE job ADD CONSTRAINT no_end CHECK (topic <> 'refused' OR state IN ('pending', 'processing'))"
            )
        )
    queue = make_queue(engine)
    for topic in ("refused", "fine"):
        queue.register(topic, lambda claim: None)
    queue.start()

    eventually(lambda: row(engine, fine)["state"] == "done")
    eventually(lambda: (h := queue.health()) is not None and h.leases == 0, timeout=20)
    assert "is given up, and its lease runs out" in caplog.text
    assert row(engine, refused)["state"] == "processing"


def test_a_log_handler_that_raises_stops_no_job(
    engine: Engine, make_queue: MakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            raise OSError("the log is full")

    def handle(claim: brooq.Claim) -> None:
        if claim.payload == "odd" and claim.attempt == 1:
            raise ValueError("a failure")

    log, broken = logging.getLogger("sqlalchemy_brooq"), Broken(logging.DEBUG)
    log.addHandler(broken)
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        add(engine, *(brooq.Job("t", kind) for kind in ["even", "odd"] * 20))
        queue = make_queue(engine)
        queue.register("t", handle)
        queue.start()
        eventually(all_settled(engine), 10)
        report = queue.stop()
    finally:
        log.removeHandler(broken)
        log.setLevel(level)

    assert states(engine) == {"done": 40}
    assert report is not None
    assert report.clean
    assert "the log is full" in capsys.readouterr().err
