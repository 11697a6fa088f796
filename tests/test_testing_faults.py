"""
Faults on demand, and the proof that a handler is idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from sqlalchemy_brooq.testing import (
    NotIdempotent,
    acrash_everywhere,
    adrain,
    advance,
    arolled_back,
    crash_after_commit,
    crash_before_settle,
    crash_everywhere,
    drain,
    enqueued,
    interrupt,
    lose_lease,
    rolled_back,
    run_job,
)
from tests.queues import MakeQueue

TABLES = """
    CREATE TABLE orders (id serial PRIMARY KEY, times int NOT NULL DEFAULT 0, changed_at timestamptz);
    CREATE TABLE mail (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), order_id int REFERENCES orders, sent timestamp,
        job_id uuid UNIQUE
    );
    CREATE TABLE receipt (number serial PRIMARY KEY, mail_id uuid REFERENCES mail);
    INSERT INTO orders DEFAULT VALUES;
"""


@pytest.fixture
def queue(engine: Engine, make_queue: MakeQueue) -> brooq.Queue:
    with engine.begin() as connection:
        connection.execute(text(TABLES))
    return make_queue(engine, lease="10s")


@pytest.fixture
def session(queue: brooq.Queue) -> Iterator[Session]:
    with rolled_back(queue) as session:
        yield session


def an_order(queue: brooq.Queue, engine: Engine) -> tuple[Callable[..., None], Callable[..., None]]:
    """
    Register a handler that is safe, in a transaction, and one that isn't.
    """

    @queue.handler("safe", transactional=True)
    def safe(claim: brooq.Claim, session: Session) -> None:
        session.execute(text("UPDATE orders SET times = times + 1"))
        claim.chain(Job("next"))

    @queue.handler("unsafe")
    def unsafe(claim: brooq.Claim) -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE orders SET times = times + 1"))
        claim.chain(Job("next"))

    queue.register("next", lambda claim: None)
    return safe, unsafe


def left(session: Session) -> tuple[Any, list[tuple[str, str]]]:
    times = session.scalar(text("SELECT times FROM orders"))
    return times, [(job.topic, job.state) for job in enqueued(session)]


def outcomes(records: Any) -> list[tuple[str, str]]:
    return [(record.topic, record.outcome) for record in records]


# -- one fault


@pytest.mark.parametrize(("topic", "times"), [("safe", 0), ("unsafe", 1)])
def test_a_crash_before_the_outcome_leaves_what_was_committed_and_the_lease(
    queue: brooq.Queue, engine: Engine, session: Session, topic: str, times: int
) -> None:
    an_order(queue, engine)
    session.add(Job(topic))

    with crash_before_settle() as fault:
        (record,) = drain(session, queue)
    assert (record.outcome, record.state) == ("crashed", "processing")
    assert fault.struck == {record.job_id}
    assert left(session) == (times, [(topic, "processing")])
    assert drain(session, queue) == []

    advance(session, queue.config.lease)
    assert outcomes(drain(session, queue)) == [(topic, "done"), ("next", "done")]
    assert left(session) == (times + 1, [(topic, "done"), ("next", "done")])
    job = enqueued(session, topic)[0]
    assert (job.attempts, job.requeues, job.last_error) == (2, 1, None)


@pytest.mark.parametrize("topic", ["safe", "unsafe"])
def test_a_crash_after_the_commit_leaves_effect_and_outcome_and_nothing_runs_again(
    queue: brooq.Queue, engine: Engine, session: Session, topic: str
) -> None:
    an_order(queue, engine)
    session.add(Job(topic))

    with crash_after_commit():
        (record,) = drain(session, queue)
    assert (record.outcome, record.state) == ("crashed", "done")
    assert left(session) == (1, [(topic, "done"), ("next", "pending")])

    advance(session, queue.config.lease)
    assert outcomes(drain(session, queue)) == [("next", "done")]


@pytest.mark.parametrize(("topic", "times"), [("safe", 1), ("unsafe", 2)])
def test_a_lease_that_is_lost_leaves_no_outcome_and_the_job_runs_again(
    queue: brooq.Queue, engine: Engine, session: Session, topic: str, times: int
) -> None:
    an_order(queue, engine)
    session.add(Job(topic))

    with lose_lease(topic):
        records = drain(session, queue)

    assert outcomes(records) == [(topic, "lost"), (topic, "done"), ("next", "done")]
    assert left(session) == (times, [(topic, "done"), ("next", "done")])


def test_a_handler_that_is_told_of_the_lost_lease_can_stop(queue: brooq.Queue, session: Session) -> None:
    seen: list[Any] = []

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        seen.append(type(claim.cause))
        claim.check()

    session.add(Job("t"))
    with lose_lease(told=True):
        assert outcomes(drain(session, queue)) == [("t", "lost"), ("t", "done")]
    assert seen == [brooq.LeaseLost, type(None)]


def test_a_crash_ends_the_drain_and_whatever_the_handler_does_about_it_counts_for_nothing(
    queue: brooq.Queue, engine: Engine, session: Session
) -> None:
    @queue.handler("clings", transactional=True)
    def clings(claim: brooq.Claim, own: Session) -> None:
        own.execute(text("UPDATE orders SET times = 7"))

    @queue.handler("other")
    def other(claim: brooq.Claim) -> None: ...

    def stubborn(claim: brooq.Claim) -> None:
        with contextlib.suppress(BaseException), engine.begin() as connection:
            connection.execute(text("UPDATE orders SET times = 8"))
        with engine.begin() as connection:
            connection.execute(text("UPDATE orders SET times = 9"))

    queue.register("stubborn", stubborn)
    session.add(Job("stubborn"))
    report = crash_everywhere(stubborn, session, queue, enqueued(session)[0], check=False)
    assert report.places[0].statement == "UPDATE orders SET times = 8"
    assert left(session)[0] == 0

    session.add_all([Job("clings", priority=1), Job("other")])
    with crash_before_settle():
        assert outcomes(drain(session, queue)) == [("clings", "crashed")]
    assert left(session)[0] == 0


def test_a_failure_is_not_written_either_if_the_worker_crashes(queue: brooq.Queue, session: Session) -> None:
    @queue.handler("fails")
    def fails(claim: brooq.Claim) -> None:
        raise ValueError("no")

    with crash_before_settle():
        assert run_job(session, queue, Job("fails")).outcome == "crashed"
    (job,) = enqueued(session)
    assert (job.state, job.last_error, job.attempts) == ("processing", None, 1)


def test_a_fault_strikes_each_job_once_and_only_those_of_its_topic(queue: brooq.Queue, session: Session) -> None:
    for topic in ("a", "b"):
        queue.register(topic, lambda claim: None)
    session.add_all([Job("a", 1), Job("a", 2), Job("b", 3)])

    with lose_lease("a") as fault:
        records = drain(session, queue)

    assert sorted(outcomes(records)) == [("a", "done")] * 2 + [("a", "lost")] * 2 + [("b", "done")]
    assert fault.struck == {job.id for job in enqueued(session, "a")}


def test_a_fault_that_struck_nothing_fails_the_test(queue: brooq.Queue, session: Session) -> None:
    with (
        pytest.raises(
            AssertionError, match=r"lose_lease\(\) struck nothing: no attempt was made at a job of 'a' within"
        ),
        lose_lease("a"),
    ):
        drain(session, queue)
    with pytest.raises(ZeroDivisionError), crash_before_settle():
        _ = 1 / 0


def test_only_what_a_worker_interrupts_with_can_be_demanded() -> None:
    for cause in (brooq.LeaseLost, brooq.MaxExecutionExceeded, ValueError):
        with pytest.raises(TypeError, match=r"interrupt\(\) takes AttemptTimeout or Shutdown, not"):
            interrupt(cause)  # type: ignore[arg-type]


# -- everywhere


def test_a_transactional_handler_is_proved_idempotent(queue: brooq.Queue, engine: Engine, session: Session) -> None:
    safe, _ = an_order(queue, engine)

    report = crash_everywhere(safe, session, queue, Job("safe"))

    assert report.is_idempotent
    lines = str(report).splitlines()
    assert lines[0] == "safe: crashed at 3 places, and run again after each: all left the same behind"
    assert lines[1] == "   1. the same   before UPDATE orders SET times = times + 1"
    assert lines[2].startswith("   2. the same   before INSERT INTO job (id, topic,")
    assert lines[3:] == ["   3. the same   before (the write of the outcome)"]
    assert left(session) == (0, [("safe", "pending")])


def test_one_that_is_not_idempotent_fails_with_an_account(queue: brooq.Queue, engine: Engine, session: Session) -> None:
    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO mail (order_id, sent) SELECT id, now() FROM orders"))
        sent.append("ada")
        with engine.begin() as connection:
            connection.execute(text("UPDATE orders SET times = times + 1, changed_at = clock_timestamp()"))
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM orders WHERE times > 1 AND NOT EXISTS (SELECT 1 FROM mail)"))

    sent: list[str] = []
    with pytest.raises(NotIdempotent) as failed:
        crash_everywhere(handle, session, queue, Job("t"), outside=sent)

    mail = "mail has a row more: id (new), order_id 1, sent (now)"
    outside = "outside is ['ada', 'ada'], not ['ada']"
    assert [place.differences for place in failed.value.report.places] == [
        (),
        (mail, outside),
        (mail, "orders.times is 2, not 1", outside),
        (mail, "orders.times is 2, not 1", outside),
    ]
    account = str(failed.value)
    assert account.startswith(
        "t: crashed at 4 places, and run again after each: 3 left something else behind\n   1. the"
    )
    assert (
        f"   2. OTHERWISE  before UPDATE orders SET times = times + 1, changed_at = clock_timestamp()\n{mail:>70}"
        in account
    )


def test_ids_that_are_made_up_and_moments_may_differ_and_what_points_at_them(
    queue: brooq.Queue, engine: Engine, session: Session
) -> None:
    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        mail = "INSERT INTO mail (order_id, sent, job_id) VALUES (1, clock_timestamp(), :id) ON CONFLICT DO NOTHING"
        with engine.begin() as connection:
            connection.execute(text(mail), {"id": claim.id})
        receipt = "INSERT INTO receipt (mail_id) SELECT id FROM mail WHERE NOT EXISTS (SELECT 1 FROM receipt)"
        with engine.begin() as connection:
            connection.execute(text(receipt))
            connection.execute(text("UPDATE orders SET changed_at = clock_timestamp()"))
        claim.chain(Job("next", {"by": str(claim.id)}, idempotency_key=str(claim.id)))

    assert len(crash_everywhere(handle, session, queue, Job("t")).places) == 5


def test_what_may_differ_can_be_named(queue: brooq.Queue, engine: Engine, session: Session) -> None:
    _, unsafe = an_order(queue, engine)
    job = Job("unsafe")

    with pytest.raises(NotIdempotent):
        crash_everywhere(unsafe, session, queue, job)
    assert crash_everywhere(unsafe, session, queue, job, ignore=["orders.times"]).is_idempotent
    assert crash_everywhere(unsafe, session, queue, job, ignore={"orders"}).is_idempotent
    assert not crash_everywhere(unsafe, session, queue, job, check=False).is_idempotent


def test_another_outcome_the_second_time_is_a_difference(queue: brooq.Queue, engine: Engine, session: Session) -> None:
    @queue.handler("t", keep_result=True)
    def handle(claim: brooq.Claim) -> int:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO mail (job_id) VALUES (:id)"), {"id": claim.id})
        return claim.attempt

    report = crash_everywhere(handle, session, queue, Job("t"), check=False)

    first, second = report.places
    assert first.differences == ("job.result is 2, not 1",)
    assert "job.state is 'failed', not 'done'" in second.differences
    assert any("duplicate key value violates unique" in line for line in second.differences)


def test_a_handler_that_fails_undisturbed_proves_nothing(queue: brooq.Queue, session: Session) -> None:
    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        raise KeyError("order")

    with pytest.raises(
        AssertionError, match=r"undisturbed, it doesn't end done: <t .* KeyError: 'order'>\n(.*\n)+.*in handle"
    ):
        crash_everywhere(handle, session, queue, Job("t"))


def test_the_handler_must_be_the_queues_for_the_job(queue: brooq.Queue, engine: Engine, session: Session) -> None:
    safe, unsafe = an_order(queue, engine)

    with pytest.raises(brooq.RegistrationError, match=r"for the job's topic, 'safe', .* has <function .*safe.*, not"):
        crash_everywhere(unsafe, session, queue, Job("safe"))
    with pytest.raises(brooq.RegistrationError, match="has no handler, not <function"):
        crash_everywhere(safe, session, queue, Job("nobodys"))


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_faults_and_proofs_work_in_async_tests(
    engine: Engine, database_url: URL, make_queue: MakeQueue, driver: str
) -> None:
    with engine.begin() as connection:
        connection.execute(text(TABLES))
    async_engine = create_async_engine(database_url.set(drivername=f"postgresql+{driver}"))
    queue = make_queue(async_engine, lease="10s")

    @queue.handler("safe", transactional=True)
    async def safe(claim: brooq.Claim, session: AsyncSession) -> None:
        await session.execute(text("UPDATE orders SET times = times + 1"))
        claim.chain(Job("next"))

    @queue.handler("unsafe")
    async def unsafe(claim: brooq.Claim) -> None:
        async with queue.abegin() as session:
            await session.execute(text("UPDATE orders SET times = times + 1"))
        await asyncio.sleep(0)

    async def main() -> None:
        async with arolled_back(queue) as session:
            assert len((await acrash_everywhere(safe, session, queue, Job("safe"))).places) == 3
            with pytest.raises(NotIdempotent, match=r"orders\.times is 2, not 1"):
                await acrash_everywhere(unsafe, session, queue, Job("unsafe"))
            for fault, ended in (
                (lose_lease, "lost"),
                (crash_before_settle, "crashed"),
                (crash_after_commit, "crashed"),
            ):
                session.add(Job("safe", priority=2))
                with fault("safe"):
                    assert (await adrain(session, queue))[0].outcome == ended
        await async_engine.dispose()

    asyncio.run(main())
