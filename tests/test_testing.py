"""
The testing kit, as a consumer's tests use it: jobs run in the test's own transaction, and nothing of it remains.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, select, text
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job, JobState
from sqlalchemy_brooq.testing import (
    AttemptRecord,
    aadvance,
    adrain,
    advance,
    arolled_back,
    arun_job,
    assert_enqueued,
    crash_everywhere,
    drain,
    enqueued,
    rolled_back,
    run_job,
)
from tests.queues import MakeQueue, count


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


@pytest.fixture(autouse=True)
def _tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)


@dataclass
class NewOrder:
    note: str


def orders(session: Session | Connection) -> list[str]:
    return list(session.scalars(select(Order.note).order_by(Order.id)))


def write(connection: Connection | Session, note: str) -> None:
    connection.execute(text("INSERT INTO orders (note) VALUES (:note)"), {"note": note})


def outcomes(records: list[AttemptRecord]) -> list[tuple[str, str]]:
    return [(record.topic, record.outcome) for record in records]


# -- where a test may work


@contextmanager
def a_session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@contextmanager
def a_joined_session(engine: Engine) -> Iterator[Session]:
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        transaction.rollback()


@contextmanager
def a_scoped_session(engine: Engine) -> Iterator[scoped_session[Session]]:
    session = scoped_session(sessionmaker(engine))
    yield session
    session.remove()


@contextmanager
def a_connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


@contextmanager
def a_repeatable_read(engine: Engine) -> Iterator[Session]:
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        yield session


PLACES = (a_session, a_joined_session, a_scoped_session, a_connection, a_repeatable_read)


def a_shop(queue: brooq.Queue, engine: Engine) -> None:
    """
    Register handlers that write in each way there is.
    """

    @queue.handler("order", transactional=True)
    def order(claim: brooq.Claim, session: Session) -> None:
        session.add(Order(note="lent session"))
        claim.chain(Job("mail"))

    @queue.handler("mail")
    def mail(claim: brooq.Claim) -> None:
        with queue.begin() as session:
            session.add(Order(note="own session"))
        with engine.begin() as connection:
            write(connection, "own connection")
        with Session(engine) as session:
            session.add(Order(note="session of the engine"))
            session.commit()
            session.add(Order(note="rolled back"))
        queue.enqueue(Job("bill", idempotency_key="1"))
        queue.enqueue(Job("bill", idempotency_key="1"))

    @queue.handler("bill")
    async def bill(claim: brooq.Claim) -> None:
        await asyncio.sleep(0)
        claim.on_success(lambda session: session.add(Order(note="callback")))


WRITTEN = ["lent session", "own session", "own connection", "session of the engine", "callback"]


@pytest.mark.parametrize("place", PLACES)
def test_whatever_handlers_commit_is_a_part_of_the_tests_transaction_and_goes_with_it(
    engine: Engine, make_queue: MakeQueue, place: Callable[[Engine], Any]
) -> None:
    queue = make_queue(engine)
    a_shop(queue, engine)

    with place(engine) as session:
        brooq.enqueue(session, Job("order"))
        assert outcomes(drain(session, queue)) == [("order", "done"), ("mail", "done"), ("bill", "done")]
        assert orders(session) == WRITTEN
        assert [job.state for job in enqueued(session)] == ["done"] * 3
        assert drain(session, queue) == []
        session.rollback()

    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)


def test_what_was_added_and_not_flushed_is_run_and_the_objects_show_what_became_of_it(
    engine: Engine, make_queue: MakeQueue
) -> None:
    queue = make_queue(engine)

    @queue.handler("note", transactional=True)
    def note(claim: brooq.Claim, session: Session) -> None:
        session.get_one(Order, claim.payload).note = "seen"

    with Session(engine) as session:
        order = Order(note="new")
        session.add(order)
        session.flush()
        job = Job("note", order.id)
        session.add(job)
        drain(session, queue)
        assert (order.note, job.state, job.attempts) == ("seen", "done", 1)


def test_a_test_that_commits_keeps_all_of_it(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    a_shop(queue, engine)

    with Session(engine) as session:
        session.add(Job("order"))
        drain(session, queue)
        session.commit()

    assert (count(engine, "job"), count(engine, "orders")) == (3, 5)


def test_a_failed_handler_spoils_nothing_for_the_test(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    @queue.handler("breaks")
    def breaks(claim: brooq.Claim) -> None:
        with queue.begin() as session:
            session.add(Order(note="never"))
            session.execute(text("SELECT 1/0"))

    @queue.handler("leaks")
    def leaks(claim: brooq.Claim) -> None:
        connection = engine.connect()
        left.append(connection)
        write(connection, "never")

    left: list[Connection] = []
    with Session(engine) as session:
        session.add_all([Order(note="mine"), Job("breaks"), Job("leaks")])
        assert outcomes(drain(session, queue)) == [("breaks", "failed"), ("leaks", "done")]
        assert orders(session) == ["mine"]
    left[0].close()


# -- what a test is told


def test_a_record_says_what_became_of_an_attempt(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, backoff_base="4s", backoff_max="4s", max_attempts=2)

    @queue.handler("t")
    def fail(claim: brooq.Claim) -> None:
        raise KeyError("order")

    with Session(engine) as session:
        job = Job("t")
        session.add(job)
        (first,) = drain(session, queue)
        advance(session, "4s")
        (second,) = drain(session, queue)

    assert (first.job_id, first.topic, first.attempt) == (job.id, "t", 1)
    assert type(first.outcome) is str
    assert (first.outcome, first.state, first.error) == ("failed", JobState.FAILED, "KeyError: 'order'")
    assert first.delay is not None
    assert timedelta(seconds=2) <= first.delay <= timedelta(seconds=4)
    assert first.trace is not None
    assert "in fail" in first.trace
    assert (second.attempt, second.outcome, second.delay) == (2, "dead", None)
    assert repr(second) == f"<t {job.id} attempt 2: dead: KeyError: 'order'>"
    assert f"attempt 1: failed, again in {first.delay.total_seconds():.3g} s: KeyError" in repr(first)


def test_jobs_are_run_in_a_workers_order(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    seen: list[Any] = []
    for topic in ("a", "b"):
        queue.register(topic, lambda claim: seen.append((claim.topic, claim.payload)))

    with Session(engine) as session:
        session.add_all([Job("a", 1), Job("a", 2), Job("a", 3), Job("b", 4), Job("b", 5, priority=1)])
        drain(session, queue)

    assert seen == [("b", 5), ("a", 1), ("b", 4), ("a", 2), ("a", 3)]


def test_no_thread_is_started_and_every_handler_runs_in_the_tests_own(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    seen: set[threading.Thread] = set()

    @queue.handler("plain")
    def plain(claim: brooq.Claim) -> None:
        seen.add(threading.current_thread())

    @queue.handler("async")
    async def asynchronous(claim: brooq.Claim) -> None:
        await asyncio.sleep(0)
        seen.add(threading.current_thread())
        claim.on_success(lambda session: seen.add(threading.current_thread()))

    before = threading.enumerate()
    with Session(engine) as session:
        session.add_all([Job("plain"), Job("async")])
        drain(session, queue)

    assert seen == {threading.current_thread()}
    assert threading.enumerate() == before


def test_jobs_that_nobody_serves_are_left_and_told_of(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(engine)

    with Session(engine) as session:
        session.add_all([Job("forgotten"), Job("forgotten"), Job("later", delay="1h")])
        assert drain(session, queue) == []

    (line,) = [record.getMessage() for record in caplog.records if record.name == "sqlalchemy_brooq.testing"]
    assert line.startswith("drain: 2 ready jobs of forgotten were left")


def test_a_chain_that_never_ends_is_ended(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("again", lambda claim: claim.chain(Job("again")))

    with Session(engine) as session:
        session.add(Job("again"))
        with pytest.raises(AssertionError, match="10 attempts were made, and still more is ready, such as again"):
            drain(session, queue, limit=10)


# -- one job


def test_run_job_makes_one_attempt_at_that_job_due_or_not_and_runs_nothing_else(
    engine: Engine, make_queue: MakeQueue
) -> None:
    queue = make_queue(engine)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        claim.chain(Job("t", "chained"))
        if claim.attempt == 1:
            raise brooq.RetryLater(timedelta(milliseconds=50))

    with Session(engine) as session:
        job, other = Job("t", delay="1h"), Job("t", "other")
        session.add(other)
        assert run_job(session, queue, job).outcome == "failed"
        assert run_job(session, queue, str(job.id)).outcome == "done"
        assert [(one.payload, one.state) for one in enqueued(session)] == [
            ({}, "done"),
            ("other", "pending"),
            ("chained", "pending"),
        ]
        assert run_job(session, queue, other.id).state is JobState.FAILED


def test_run_job_says_why_it_can_not(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    locked = Job("t")
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add(locked)
    nobody = uuid4()

    with Session(engine) as session, Session(engine) as holder:
        done = Job("t")
        run_job(session, queue, done)
        with pytest.raises(brooq.LifecycleError, match=f"job {done.id} is done: only one that is pending or failed"):
            run_job(session, queue, done)
        with pytest.raises(brooq.RegistrationError, match="has no handler for 'unknown', the topic of job"):
            run_job(session, queue, Job("unknown"))
        with pytest.raises(brooq.JobNotFound, match=str(nobody)):
            run_job(session, queue, nobody)
        with pytest.raises(brooq.InvalidJob, match="job id 'x' is refused"):
            run_job(session, queue, "x")
        holder.execute(select(Job).where(Job.id == locked.id).with_for_update())
        with pytest.raises(brooq.LifecycleError, match="another transaction holds its row"):
            run_job(session, queue, locked)
        assert drain(session, queue) == []


# -- time


def test_time_that_passes_makes_jobs_due(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    with Session(engine) as session:
        job = Job("t", delay="1h")
        session.add(job)
        advance(session, timedelta(minutes=59))
        assert drain(session, queue) == []
        advance(session, "1m")
        assert outcomes(drain(session, queue)) == [("t", "done")]
        assert job.updated_at - job.created_at == timedelta(hours=1)


def test_time_that_passes_ends_leases_and_the_next_drain_finds_them(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, lease="10s")

    @queue.handler("slow")
    def slow(claim: brooq.Claim) -> None:
        with Session(engine) as session:
            advance(session, "10s" if claim.attempt == 1 else "9s")
            session.commit()

    with Session(engine) as session:
        job = Job("slow")
        session.add(job)
        # Time alone ends no claim: somebody must find that the lease is over, and here nobody else looks.
        assert outcomes(drain(session, queue)) == [("slow", "done")]
        session.execute(text("UPDATE job SET state = 'processing'"))
        advance(session, "10s")
        assert outcomes(drain(session, queue)) == [("slow", "done")]
        assert (job.attempts, job.requeues) == (2, 1)


@pytest.mark.parametrize(
    ("by", "said"), [(timedelta(-1), "negative"), ("soon", "is not a duration"), (5, "has no unit")]
)
def test_time_passes_forward_only_and_has_a_unit(session: Session, by: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        advance(session, by)


def test_time_passes_for_nobody_elses_rows(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)
    with Session(engine) as session, session.begin():
        session.add(Job("t", "theirs", delay="1h"))

    with Session(engine) as theirs, Session(engine) as ours:
        theirs.execute(select(Job).with_for_update())
        ours.add(Job("t", "ours", delay="1h"))
        advance(ours, "1h")
        assert len(drain(ours, queue)) == 1
        theirs.rollback()
        advance(ours, "1h")
        assert len(drain(ours, queue)) == 1


# -- async tests


@pytest.fixture(params=["psycopg", "asyncpg"])
def async_url(request: pytest.FixtureRequest, database_url: URL) -> URL:
    return database_url.set(drivername=f"postgresql+{request.param}")


def an_async_shop(queue: brooq.Queue, engine: AsyncEngine) -> None:
    @queue.handler("order", transactional=True)
    async def order(claim: brooq.Claim, session: AsyncSession) -> None:
        session.add(Order(note="lent session"))
        claim.chain(Job("mail"))

    @queue.handler("mail")
    async def mail(claim: brooq.Claim) -> None:
        async with queue.abegin() as session:
            session.add(Order(note="own session"))
        async with engine.begin() as connection:
            await connection.run_sync(write, "own connection")
        async with AsyncSession(engine) as session:
            session.add(Order(note="session of the engine"))
            await session.commit()
            session.add(Order(note="rolled back"))
            await session.flush()
        await queue.aenqueue(Job("bill", idempotency_key="1"))
        await queue.aenqueue(Job("bill", idempotency_key="1"))

    @queue.handler("bill")
    def bill(claim: brooq.Claim) -> None:
        claim.on_success(lambda session: session.add(Order(note="callback")))


def run_in_loop(engine: AsyncEngine, work: Callable[[], Any]) -> None:
    async def main() -> None:
        try:
            await work()
        finally:
            await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("place", [AsyncSession, async_sessionmaker, "scoped", "connection"])
def test_an_async_test_runs_its_jobs_in_its_own_loop_and_transaction(
    engine: Engine, async_url: URL, make_queue: MakeQueue, place: Any
) -> None:
    async_engine = create_async_engine(async_url)
    queue = make_queue(async_engine)
    an_async_shop(queue, async_engine)

    async def main() -> None:
        made: Any = AsyncSession(async_engine, expire_on_commit=False)
        if place == "scoped":
            made = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
        elif place == "connection":
            made = await async_engine.connect()
        await brooq.aenqueue(made, Job("order"))
        assert outcomes(await adrain(made, queue)) == [("order", "done"), ("mail", "done"), ("bill", "done")]
        connection = made if place == "connection" else await made.connection()
        assert await connection.run_sync(orders) == WRITTEN
        await made.rollback()
        await made.close()

    run_in_loop(async_engine, main)
    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)


def test_an_async_tests_objects_show_what_became_of_them_without_being_asked(
    async_url: URL, make_queue: MakeQueue
) -> None:
    async_engine = create_async_engine(async_url)
    queue = make_queue(async_engine)

    @queue.handler("note", transactional=True)
    async def note(claim: brooq.Claim, session: AsyncSession) -> None:
        (await session.get_one(Order, claim.payload)).note = "seen"
        await session.execute(text("DELETE FROM orders WHERE note = 'doomed'"))

    async def main() -> None:
        async with AsyncSession(async_engine) as session:
            order, doomed = Order(note="new"), Order(note="doomed")
            session.add_all([order, doomed])
            await session.flush()
            job = Job("note", order.id, delay="1h")
            session.add(job)
            await aadvance(session, "1h")
            await adrain(session, queue)
            assert (order.note, job.state, job.attempts) == ("seen", "done", 1)
            assert (await arun_job(session, queue, Job("note", order.id))).outcome == "done"
            assert await session.get(Order, doomed.__dict__.get("id", 0)) is None

    run_in_loop(async_engine, main)


# -- whole tests in a transaction


def test_all_connections_of_a_queues_engine_are_part_of_one_transaction(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    a_shop(queue, engine)
    factory = sessionmaker(engine)

    with rolled_back(queue) as session:
        with factory.begin() as request:
            request.add(Job("order"))
        assert len(enqueued(session)) == 1
        with factory() as other:
            assert len(drain(other, queue)) == 3
        assert orders(session) == WRITTEN
        engine.dispose()
        with factory() as other:
            assert orders(other) == WRITTEN

    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)


def test_a_plain_test_of_an_async_application_needs_no_loop_of_its_own(
    engine: Engine, database_url: URL, make_queue: MakeQueue
) -> None:
    async_engine = create_async_engine(database_url)
    queue = make_queue(async_engine)
    an_async_shop(queue, async_engine)

    async def request() -> None:
        async with AsyncSession(async_engine) as session, session.begin():
            session.add(Job("order"))

    with rolled_back(queue) as session:
        asyncio.run(request())
        assert len(drain(session, queue)) == 3
        assert orders(session) == WRITTEN
    asyncio.run(async_engine.dispose())

    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)


def test_an_async_test_has_all_connections_in_one_transaction_too(
    engine: Engine, async_url: URL, make_queue: MakeQueue
) -> None:
    async_engine = create_async_engine(async_url)
    queue = make_queue(async_engine)
    an_async_shop(queue, async_engine)

    async def main() -> None:
        async with arolled_back(queue) as session:
            async with AsyncSession(async_engine) as request, request.begin():
                request.add(Job("order"))
            assert len(await adrain(session, queue)) == 3
            assert await session.run_sync(orders) == WRITTEN

    run_in_loop(async_engine, main)
    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_an_engines_own_isolation_level_is_no_matter(
    engine: Engine, database_url: URL, make_queue: MakeQueue, level: Any
) -> None:
    odd = create_engine(database_url, isolation_level=level)
    queue = make_queue(odd)
    a_shop(queue, odd)

    with rolled_back(queue) as session:
        session.add(Job("order"))
        session.commit()
        assert len(drain(session, queue)) == 3
        assert orders(session)[:2] == WRITTEN[:2]
    odd.dispose()

    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)


def test_other_engines_of_the_application_can_be_taken_in(
    engine: Engine, database_url: URL, make_queue: MakeQueue
) -> None:
    other = create_engine(database_url)
    queue = make_queue(engine)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        with other.begin() as connection:
            write(connection, "by another engine")

    with Session(engine) as session:
        session.add(Job("t"))
        drain(session, queue, engines=[other])
        assert orders(session) == ["by another engine"]
    with rolled_back(queue, other) as session:
        with Session(other) as request, request.begin():
            request.add(Job("t"))
        drain(session, queue)
        assert orders(session) == ["by another engine"]

    with other.connect() as connection:
        assert orders(connection) == []
    other.dispose()


def test_a_queues_engine_needs_no_server_but_the_tests(engine: Engine, make_queue: MakeQueue) -> None:
    elsewhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    queue = make_queue(elsewhere)

    @queue.handler("t", transactional=True)
    def handle(claim: brooq.Claim, session: Session) -> None:
        session.add(Order(note="here"))

    with Session(engine) as session:
        session.add(Job("t"))
        assert outcomes(drain(session, queue)) == [("t", "done")]
        assert orders(session) == ["here"]


def test_psycopg2_will_do(database_url: URL, engine: Engine, make_queue: MakeQueue) -> None:
    other = create_engine(database_url.set(drivername="postgresql+psycopg2"))
    queue = make_queue(other)
    a_shop(queue, other)

    with Session(other) as session:
        session.add(Job("order"))
        assert len(drain(session, queue)) == 3
        assert orders(session) == WRITTEN
        with other.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            write(connection, "not ours to route")
        session.rollback()
    other.dispose()

    assert (count(engine, "job"), count(engine, "orders")) == (0, 1)


@pytest.mark.parametrize("joins", [False, True])
def test_a_session_factory_that_the_test_has_bound_to_its_connection_is_used(
    engine: Engine, make_queue: MakeQueue, *, joins: bool
) -> None:
    class Special(Session):
        pass

    factory = sessionmaker(engine, class_=Special)
    queue = make_queue(engine, options={"session_factory": factory})
    seen: list[Session] = []

    @queue.handler("t", transactional=True)
    def handle(claim: brooq.Claim, session: Session) -> None:
        seen.append(session)
        session.add(Order(note="lent"))
        with queue.begin() as other:
            seen.append(other)
            other.add(Order(note="own"))

    with engine.connect() as connection, connection.begin() as transaction:
        if joins:
            factory.configure(bind=connection, join_transaction_mode="create_savepoint")
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.add(Job("t"))
            assert outcomes(drain(session, queue)) == [("t", "done")]
            assert sorted(orders(session)) == ["lent", "own"]
        transaction.rollback()

    assert [isinstance(one, Special) for one in seen] == [True, True]
    assert count(engine, "orders") == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_session_of_two_phases_has_one_in_a_test(database_url: URL, make_queue: MakeQueue, driver: str) -> None:
    engine = create_engine(database_url.set(drivername=f"postgresql+{driver}"))
    queue = make_queue(engine, options={"session_factory": sessionmaker(engine, twophase=True)})

    @queue.handler("t", transactional=True)
    def handle(claim: brooq.Claim, session: Session) -> None:
        session.add(Order(note="lent"))
        if claim.payload:
            raise ValueError("no")

    with Session(engine) as session:
        session.add_all([Job("t"), Job("t", "fails")])
        assert outcomes(drain(session, queue)) == [("t", "done"), ("t", "failed")]
        assert orders(session) == ["lent"]
    engine.dispose()


# -- how transactions meet on one connection


def test_transactions_may_end_in_any_order_as_long_as_they_commit(engine: Engine, make_queue: MakeQueue) -> None:
    with rolled_back(make_queue(engine)) as session:
        first, second = engine.connect(), engine.connect()
        write(first, "first")
        write(second, "second")
        first.commit()
        write(first, "third")
        second.commit()
        first.rollback()
        first.close()
        second.close()
        assert orders(session) == ["first", "second"]


def test_a_handler_may_use_the_tests_own_session(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        session.add(Order(note="by the test's session"))
        session.flush()

    with rolled_back(queue) as session:
        queue.enqueue(Job("t"))
        session.commit()
        drain(session, queue)
        assert orders(session) == ["by the test's session"]


def test_a_transaction_of_a_test_may_stand_in_another(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    with rolled_back(queue) as outer:
        with rolled_back(queue) as inner:
            write(inner, "inner")
            inner.commit()
            assert orders(outer) == ["inner"]
        assert orders(outer) == []
        with engine.begin() as connection:
            write(connection, "outer")
        assert orders(outer) == ["outer"]
    assert count(engine, "orders") == 0


def test_one_that_has_only_read_takes_nobody_with_it(engine: Engine, make_queue: MakeQueue) -> None:
    with rolled_back(make_queue(engine)) as session:
        with engine.connect() as reader:
            assert orders(reader) == []
            with engine.begin() as other:
                write(other, "first")
            reader.rollback()
            assert orders(reader) == ["first"]
            with engine.begin() as other:
                write(other, "second")
            write(reader, "never")
        assert orders(session) == ["first", "second"]


def test_a_cursor_that_sqlalchemy_has_not_used_may_have_written(engine: Engine, make_queue: MakeQueue) -> None:
    with rolled_back(make_queue(engine)) as session:
        with engine.connect() as connection:
            raw = connection.connection.cursor()
            raw.execute("INSERT INTO orders (note) VALUES ('never')")
            raw.close()
        assert orders(session) == []


def test_one_that_has_met_an_error_stands_in_nobodys_way(engine: Engine, make_queue: MakeQueue) -> None:
    with rolled_back(make_queue(engine)) as session:
        with engine.connect() as first:
            write(first, "never")
            with pytest.raises(DBAPIError):
                first.execute(text("SELECT 1/0"))
            with engine.begin() as second:
                write(second, "then")
            with pytest.raises(StatementError, match="current transaction is aborted"):
                write(first, "nor this")
            first.commit()
            write(first, "at last")
            first.commit()
        assert orders(session) == ["then", "at last"]


def test_one_that_is_rolled_back_takes_later_ones_with_it_and_says_so(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    with rolled_back(make_queue(engine)) as session:
        with engine.connect() as first, engine.connect() as second:
            write(first, "first")
            write(second, "second")
            second.commit()
            write(second, "third")
            first.rollback()
            with pytest.raises(
                StatementError, match="this transaction is gone: one that began before it was rolled back"
            ):
                write(second, "fourth")
            second.rollback()
            write(second, "fifth")
            second.commit()
        assert orders(session) == ["fifth"]

    assert "a transaction was rolled back, and with it what others have committed" in caplog.text


def test_a_commit_after_an_error_is_a_rollback(engine: Engine, make_queue: MakeQueue) -> None:
    with rolled_back(make_queue(engine)) as session:
        with engine.connect() as connection:
            write(connection, "never")
            with pytest.raises(DBAPIError):
                connection.execute(text("SELECT 1/0"))
            connection.commit()
            write(connection, "then")
            connection.commit()
        assert orders(session) == ["then"]


def test_a_connection_that_is_invalidated_leaves_nothing_behind(engine: Engine, make_queue: MakeQueue) -> None:
    with rolled_back(make_queue(engine)) as session:
        with engine.connect() as connection:
            write(connection, "never")
            connection.invalidate()
        with engine.begin() as connection:
            write(connection, "then")
        assert orders(session) == ["then"]


# -- what it refuses


def test_a_session_that_commits_each_statement_is_refused(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    with (
        Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session,
        pytest.raises(TypeError, match="commits each statement, and nothing could be rolled back: bind it to"),
    ):
        drain(session, queue)


def test_a_session_of_another_driver_is_refused(database_url: URL, engine: Engine, make_queue: MakeQueue) -> None:
    other = create_engine(database_url.set(drivername="postgresql+psycopg2"))
    asyncpg = create_async_engine(database_url.set(drivername="postgresql+asyncpg"))
    psycopg = create_async_engine(database_url)
    plain, on_asyncpg = make_queue(engine), make_queue(asyncpg)

    with Session(other) as session, pytest.raises(TypeError, match=r"session on psycopg2 can't serve .* is on psycopg"):
        drain(session, plain)
    with pytest.raises(TypeError, match="on asyncpg: use an async test, with an AsyncSession"), rolled_back(on_asyncpg):
        pass

    async def main() -> None:
        async with AsyncSession(psycopg) as session:
            with pytest.raises(TypeError, match="whose users don't await: write a plain test, with a Session"):
                await adrain(session, plain)
        with pytest.raises(TypeError, match="this one has an Engine: use rolled_back"):
            async with arolled_back(plain):
                pass

    run_in_loop(psycopg, main)
    other.dispose()


def test_the_wrong_door_is_named_with_the_right_one(
    engine: Engine, async_engine_url: URL, make_queue: MakeQueue
) -> None:
    queue = make_queue(engine)
    async_engine = create_async_engine(async_engine_url)

    async def main() -> None:
        async with AsyncSession(async_engine) as session:
            with pytest.raises(TypeError, match=r"drain\(\) takes a Session.*: await adrain\(\) instead"):
                drain(session, queue)  # type: ignore[arg-type]
        with (
            Session(engine) as plain,
            pytest.raises(TypeError, match=r"adrain\(\) takes an AsyncSession.*: call drain"),
        ):
            await adrain(plain, queue)  # type: ignore[arg-type]

    run_in_loop(async_engine, main)


def test_a_worker_that_runs_is_not_stood_in_for(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.start()

    with Session(engine) as session, pytest.raises(brooq.LifecycleError, match="a worker of this queue is running"):
        drain(session, queue)


def test_async_handlers_are_not_run_by_a_plain_call_in_a_loop(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    @queue.handler("t")
    async def handle(claim: brooq.Claim) -> None: ...

    async def main() -> None:
        with Session(engine) as session, pytest.raises(brooq.LifecycleError, match="inside of a running loop"):
            drain(session, queue)

    asyncio.run(main())


# -- what else a worker does


def test_typed_payloads_are_read_and_refused_as_a_worker_does(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)

    @queue.handler("note", transactional=True, on_invalid="dead")
    def note(claim: brooq.Claim, new: NewOrder, session: Session) -> None:
        session.add(Order(note=new.note))

    with Session(engine) as session:
        session.add_all([Job("note", NewOrder("typed")), Job("note", {"note": 1})])
        good, bad = drain(session, queue)
        assert_enqueued(session, "note", NewOrder("typed"))
        assert orders(session) == ["typed"]
        assert len(crash_everywhere(note, session, queue, Job("note", NewOrder("again"))).places) == 2
    assert (good.outcome, bad.outcome) == ("done", "dead")
    assert bad.error is not None
    assert "note" in bad.error


def test_callbacks_hear_at_once_of_what_happens(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    heard: list[tuple[str, str, threading.Thread]] = []
    for event in ("JobClaimed", "JobDone", "JobFailed", "JobRequeued"):
        queue.on(event, lambda told: heard.append((told.event, told.topic, threading.current_thread())))

    @queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        if claim.attempt == 1:
            raise ValueError("no")

    with Session(engine) as session:
        session.add(Job("t"))
        drain(session, queue)
        advance(session, "1m")
        drain(session, queue)

    here = threading.current_thread()
    assert heard == [(event, "t", here) for event in ("JobClaimed", "JobFailed", "JobClaimed", "JobDone")]
