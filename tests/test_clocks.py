"""
Clocks: a worker whose own clock is minutes or hours off does nothing earlier, later or to others (invariant 11).

The workers are processes of their own, whose Python tells the wrong time; the server's clock is right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from tests.commands import RunningWorker, command_after, get, shown
from tests.queues import MakeQueue
from tests.waiting import eventually, row

MINUTES = 600
HOURS = 7_200

#: The drivers are imported first: they look values up by the class that they know. All of ours sees the other clock.
WRONG_CLOCK = """
import datetime, time
import alembic, click, prometheus_client, psycopg, sqlalchemy.dialects.postgresql.psycopg, sqlalchemy.orm

right = time.time, time.time_ns, datetime.datetime
shift = {shift}

class AnyMoment(type):
    def __instancecheck__(cls, value):
        return isinstance(value, right[2])

class WrongMoment(right[2], metaclass=AnyMoment):
    @classmethod
    def now(cls, tz=None):
        return right[2].now(tz) + datetime.timedelta(seconds=shift)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls):
        return cls.now()

def jump(seconds):
    global shift
    shift += seconds

time.time = lambda: right[0]() + shift
time.time_ns = lambda: right[1]() + round(shift * 1e9)
time.jump = jump
datetime.datetime = WrongMoment
"""

PROGRAM = """
import os
import time
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq

engine = sa.create_engine(os.environ["SHOP_URL"])
config = brooq.Config(
    lease="2s", poll_interval="100ms", reaper_period="100ms", retention_ttl="1h", retention_period="100ms"
)
queue = brooq.Queue(engine, config)


@queue.handler("time", keep_result=True)
def tell(claim):
    return [time.time(), time.time_ns() / 1e9, datetime.now(UTC).timestamp()]


@queue.handler("work")
def work(claim):
    pass


@queue.handler("hold", attempt_timeout="20s", max_execution_timeout="30s")
def hold(claim):
    time.jump(claim.payload)
    with engine.connect() as connection:
        while not connection.scalar(sa.text("SELECT count(*) FROM let_go")):
            claim.wait(0.05)


@queue.handler("fail", backoff_base="400ms", backoff_max="400ms")
def fail(claim):
    if claim.attempt == 1:
        raise ValueError("the first attempt fails")


@queue.handler("later", backoff_base="400ms", backoff_max="400ms")
def later(claim):
    if claim.attempt == 1:
        raise brooq.RetryLater("300ms")


@queue.handler("produce")
def produce(claim):
    for delay in (None, "1s"):
        claim.chain(brooq.Job("right", "chained", delay=delay))
        queue.enqueue(brooq.Job("right", "enqueued", delay=delay))
        with Session(engine) as session, session.begin():
            session.add(brooq.Job("right", "added", delay=delay))
            session.add(brooq.Job("right", "keyed", delay=delay, idempotency_key=str(delay)))
"""

StartWrong = Callable[[float], RunningWorker]

off = pytest.mark.parametrize("shift", [MINUTES, -MINUTES], ids=["ahead", "behind"])


@pytest.fixture
def start_wrong(tmp_path: Path, engine: Engine) -> Iterator[StartWrong]:
    """
    A function that starts a worker whose clock is off by so many seconds; it is gone after the test.
    """
    started: list[RunningWorker] = []
    (tmp_path / "shop.py").write_text(PROGRAM)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE let_go ()"))

    def start(shift: float) -> RunningWorker:
        command = (*command_after(WRONG_CLOCK.format(shift=shift)), "run")
        worker = RunningWorker("shop:queue", cwd=tmp_path, command=command, SHOP_URL=shown(engine.url))
        started.append(worker)
        worker.announcement()
        return worker

    yield start
    for worker in started:
        worker.__exit__()


def insert(engine: Engine, topic: str, **columns: str) -> UUID:
    """
    Insert a job in plain SQL, its *columns* given as SQL too, and return its id.
    """
    names, values = ", ".join(("topic", *columns)), ", ".join((":topic", *columns.values()))
    with engine.begin() as connection:
        statement = text(f"INSERT INTO job ({names}) VALUES ({values}) RETURNING id")
        job_id: UUID = connection.execute(statement, {"topic": topic}).scalar_one()
    return job_id


def is_done(engine: Engine, job_id: UUID) -> dict[str, Any]:
    """
    Wait until a job is done, and return its row.
    """
    eventually(lambda: row(engine, job_id)["state"] == "done", message="the job was not done")
    return dict(row(engine, job_id))


def seconds(later: Any, earlier: Any) -> float:
    return float((later - earlier).total_seconds())


def let_go(engine: Engine) -> None:
    """
    End the handlers of ``hold``.
    """
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO let_go DEFAULT VALUES"))


@off
def test_the_workers_clock_is_off(engine: Engine, start_wrong: StartWrong, shift: int) -> None:
    """
    Otherwise the other tests would tell nothing.
    """
    start_wrong(shift)

    found = is_done(engine, insert(engine, "time"))

    assert found["result"] == [pytest.approx(found["claimed_at"].timestamp() + shift, abs=5)] * 3


@off
def test_a_scheduled_job_is_claimed_when_the_database_says_so(
    engine: Engine, start_wrong: StartWrong, shift: int
) -> None:
    start_wrong(shift)
    soon = insert(engine, "work", available_at="now() + interval '2 seconds'")
    much_later = insert(engine, "work", available_at="now() + interval '60 seconds'")

    found = is_done(engine, soon)

    assert 0 <= seconds(found["claimed_at"], found["available_at"]) < 2
    assert row(engine, much_later)["attempts"] == 0


@off
def test_a_live_lease_is_safe_from_a_wrong_clock(
    engine: Engine, start_wrong: StartWrong, make_queue: MakeQueue, shift: int
) -> None:
    start_wrong(shift)
    queue = make_queue(engine, lease="2s")
    leave = threading.Event()
    queue.register("right", lambda claim: leave.wait(60))
    queue.start()
    job_id = insert(engine, "right")

    await_renewals(engine, job_id)
    leave.set()

    found = is_done(engine, job_id)
    assert (found["attempts"], found["requeues"]) == (1, 0)


@off
def test_a_wrong_clock_keeps_its_own_leases(
    engine: Engine, start_wrong: StartWrong, make_queue: MakeQueue, shift: int
) -> None:
    start_wrong(shift)
    queue = make_queue(engine)  # reaps, and handles nothing
    queue.start()
    job_id = insert(engine, "hold", payload="'0'")

    await_renewals(engine, job_id)
    let_go(engine)

    found = is_done(engine, job_id)
    assert (found["attempts"], found["requeues"]) == (1, 0)


@off
def test_an_expired_lease_is_reaped_when_the_database_says_so(
    engine: Engine, start_wrong: StartWrong, shift: int
) -> None:
    start_wrong(shift)
    job_id = insert(
        engine,
        "work",
        state="'processing'",
        attempts="1",
        locked_by="'gone:1:0'",
        claimed_at="now()",
        locked_until="now() + interval '2 seconds'",
    )
    expiry = row(engine, job_id)["locked_until"]

    found = is_done(engine, job_id)

    assert (found["attempts"], found["requeues"]) == (2, 1)
    assert 0 <= seconds(found["claimed_at"], expiry) < 2


@pytest.mark.parametrize("jump", [MINUTES, -MINUTES], ids=["forward", "back"])
def test_a_clock_that_is_set_while_a_job_runs_ends_nothing(engine: Engine, start_wrong: StartWrong, jump: int) -> None:
    """
    Neither the lease nor the attempt's timeout, which is shorter than the jump.
    """
    start_wrong(0)
    job_id = insert(engine, "hold", payload=f"'{jump}'")

    await_renewals(engine, job_id)
    let_go(engine)

    found = is_done(engine, job_id)
    assert (found["attempts"], found["requeues"], found["last_error"]) == (1, 0, None)


def await_renewals(engine: Engine, job_id: UUID) -> None:
    """
    Wait until a job was held for two leases and more, with everybody's reaper at work.
    """
    eventually(lambda: row(engine, job_id)["state"] == "processing", message="the job was not claimed")
    found = row(engine, job_id)

    def is_old() -> bool:
        now = row(engine, job_id)
        return now["state"] != "processing" or seconds(now["locked_until"], found["claimed_at"]) > 3 * 2

    eventually(is_old, message="the lease was not renewed")


@off
def test_what_a_wrong_clock_enqueues_is_ready_by_the_databases_clock(
    engine: Engine, start_wrong: StartWrong, make_queue: MakeQueue, shift: int
) -> None:
    start_wrong(shift)
    queue = make_queue(engine)
    queue.register("right", lambda claim: None)
    queue.start()

    produced = is_done(engine, insert(engine, "produce"))

    jobs = eventually(lambda: all_done(engine, "right", 8), message="they were not done")
    for job in jobs:
        assert 0 <= seconds(job["claimed_at"], job["available_at"]) < 2
        assert abs(seconds(job["created_at"], produced["updated_at"])) < 2
    assert sorted(seconds(job["available_at"], job["created_at"]) for job in jobs) == [0] * 4 + [1] * 4


def all_done(engine: Engine, topic: str, count: int) -> list[Any]:
    """
    Return the rows of a topic once *count* are done, and before that nothing.
    """
    with engine.connect() as connection:
        statement = text("SELECT * FROM job WHERE topic = :topic AND state = 'done'")
        found = list(connection.execute(statement, {"topic": topic}).mappings())
    return found if len(found) == count else []


@off
@pytest.mark.parametrize("topic", ["fail", "later"])
def test_a_failed_job_is_tried_again_when_the_database_says_so(
    engine: Engine, start_wrong: StartWrong, shift: int, topic: str
) -> None:
    start_wrong(shift)
    job_id = insert(engine, topic)

    failed = eventually(lambda: (found := row(engine, job_id))["attempts"] and found["state"] != "processing" and found)

    found = is_done(engine, job_id)
    assert found["attempts"] == 2
    if failed["state"] == "failed":  # and not yet claimed again
        assert 0 < seconds(failed["available_at"], failed["updated_at"]) <= 0.4
    assert 0 <= seconds(found["claimed_at"], found["available_at"]) < 2
    assert 0.2 <= seconds(found["claimed_at"], found["created_at"]) < 3


@pytest.mark.parametrize("shift", [HOURS, -HOURS], ids=["ahead", "behind"])
def test_retention_deletes_by_the_databases_clock(engine: Engine, start_wrong: StartWrong, shift: int) -> None:
    young = insert(engine, "work", state="'done'", updated_at="now() - interval '59 minutes'")
    old = [
        insert(engine, "work", state="'done'", updated_at="now() - interval '61 minutes'"),
        insert(engine, "work", state="'dead'", updated_at="now() - interval '1 day'"),
    ]

    start_wrong(shift)

    def left() -> set[UUID]:
        with engine.connect() as connection:
            return set(connection.execute(text("SELECT id FROM job")).scalars())

    eventually(lambda: not left().intersection(old), message="old rows are left")
    assert young in left()


@off
def test_the_age_of_a_ready_job_is_told_by_the_databases_clock(
    engine: Engine, start_wrong: StartWrong, shift: int
) -> None:
    insert(engine, "nobodys", available_at="now() - interval '60 seconds'")

    worker = start_wrong(shift)

    def age() -> float:
        _, page = get(worker.url("/metrics"))
        line = 'brooq_ready_oldest_age_seconds{topic="nobodys"} '
        return next((float(found.removeprefix(line)) for found in page.splitlines() if found.startswith(line)), 0.0)

    assert 60 <= eventually(age, message="the age is not told") < 90
