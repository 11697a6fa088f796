"""
Many jobs in one call: in bounded memory, all or none, and as if each had come alone.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import BrooqError, Enqueued, InvalidJob, Job, PayloadError, bulk
from tests.consumer import Base, Order
from tests.databases import HERE
from tests.doors import PLACES, commit, insert_probe, probes, with_probe, working_in
from tests.recording import jobs, noted, recorded
from tests.waiting import eventually, row

MEGABYTE = 1_000_000


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Any]:
    with working_in(request.param, engine) as place:
        yield place


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Slices of 200 jobs, so that a few hundred are several, and still go by COPY.
    """
    monkeypatch.setattr(bulk, "SLICE", 200)


def spoiled() -> Job:
    job = Job("t")
    job.payload["late"] = "\x00"
    return job


def ids(answers: list[Enqueued]) -> list[Any]:
    return [answer.id for answer in answers]


# -- memory


INPUTS: dict[str, Callable[[], Iterator[Job]]] = {
    "many": lambda: (Job("t", {"n": n}) for n in range(30_000)),
    "keyed": lambda: (Job("t", {"n": n}, idempotency_key=f"key {n}") for n in range(25_000)),
    "large": lambda: (Job("t", '"' * 200_000) for _ in range(400)),
    "of many objects": lambda: (Job("t", [{} for _ in range(5_000)]) for _ in range(200)),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_any_number_of_jobs_takes_little_memory(session: Session, kind: str) -> None:
    brooq.enqueue_many(session, [Job("t") for _ in range(200)])  # what is made once: statements, caches

    tracemalloc.start()
    answers = brooq.enqueue_many(session, INPUTS[kind]())
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert all(answer.created for answer in answers)
    assert peak - left < 40 * MEGABYTE  # as a whole, each of the inputs has more


# -- all or none


def test_one_refused_late_leaves_nothing_of_its_call(engine: Engine, place: Any, small_slices: None) -> None:
    with_probe(engine)
    brooq.enqueue_many(place, [Job("before")])
    insert_probe(place, 1)

    def late() -> Iterator[Job]:
        for n in range(950):
            yield Job("t", idempotency_key=str(n) if n % 3 else None)
        yield spoiled()

    with pytest.raises(PayloadError):
        brooq.enqueue_many(place, late())
    assert place.execute(text("SELECT count(*) FROM job WHERE topic = 't'")).scalar_one() == 0
    insert_probe(place, 2)
    commit(place)

    assert probes(engine) == {1, 2}
    assert [one.topic for one in jobs(engine)] == ["before"]


def test_what_was_there_before_stays_when_a_later_one_is_refused(
    engine: Engine, session: Session, small_slices: None
) -> None:
    there = brooq.enqueue(session, Job("t", idempotency_key="K"))
    added = Job("t")
    session.add(added)

    with pytest.raises(PayloadError):
        brooq.enqueue_many(session, [added, Job("t", idempotency_key="K"), *(Job("t") for _ in range(500)), spoiled()])
    session.commit()

    assert [one.id for one in jobs(engine)] == [there.id, added.id]


@pytest.mark.parametrize("fault", [lambda: Job("UPPER"), lambda: "no job", lambda: 1 / 0], ids=["job", "type", "error"])
def test_an_input_that_raises_leaves_nothing_behind(
    engine: Engine, session: Session, small_slices: None, fault: Callable[[], Any]
) -> None:
    def given() -> Iterator[Any]:
        for _ in range(450):
            yield Job("t")
        yield fault()

    with noted() as notes, pytest.raises((InvalidJob, TypeError, ZeroDivisionError)):
        brooq.enqueue_many(session, given())
    session.commit()

    assert jobs(engine) == []
    assert notes == []


def test_where_statements_commit_alone_a_claimed_job_stays(
    database_url: URL, engine: Engine, small_slices: None
) -> None:
    claim = (
        "UPDATE job SET state = 'processing', locked_by = 'w', locked_until = now(), claimed_at = now()"
        " WHERE id = (SELECT id FROM job LIMIT 1)"
    )
    autocommit = create_engine(database_url, isolation_level="AUTOCOMMIT")

    def given() -> Iterator[Job]:
        yield from (Job("t") for _ in range(250))
        with engine.begin() as worker:
            worker.execute(text(claim))
        yield spoiled()

    with Session(autocommit) as session, pytest.raises(PayloadError):
        brooq.enqueue_many(session, given())

    assert [one.state for one in jobs(engine)] == ["processing"]
    autocommit.dispose()


def test_jobs_that_were_taken_back_can_be_given_again(engine: Engine, session: Session, small_slices: None) -> None:
    given = [Job("t", n, idempotency_key=str(n) if n % 2 else None) for n in range(500)]
    with pytest.raises(PayloadError):
        brooq.enqueue_many(session, [*given, spoiled()])

    answers = brooq.enqueue_many(session, given)
    session.commit()

    assert [answer.created for answer in answers] == [True] * 500
    assert [one.payload for one in jobs(engine)] == list(range(500))


# -- what an input may do


def test_an_input_may_use_the_session_that_it_is_written_in(
    engine: Engine, session: Session, small_slices: None
) -> None:
    Base.metadata.create_all(engine)
    session.add_all(Order() for _ in range(700))
    session.flush()

    def given() -> Iterator[Job]:
        for order in session.scalars(text("SELECT id FROM orders"), execution_options={"yield_per": 100}):
            session.add(Order())
            yield Job("t", order)

    answers = brooq.enqueue_many(session, given())
    session.commit()

    assert len(answers) == len(jobs(engine)) == 700
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM orders")) == 1_400


def test_what_an_input_flushed_stays_when_a_later_job_is_refused(
    engine: Engine, session: Session, small_slices: None
) -> None:
    Base.metadata.create_all(engine)
    order = Order()

    def given() -> Iterator[Job]:
        yield from (Job("t") for _ in range(450))
        session.add(order)
        session.flush()
        yield spoiled()

    with pytest.raises(PayloadError):
        brooq.enqueue_many(session, given())
    session.commit()

    session.refresh(order)
    assert jobs(engine) == []


def test_what_something_points_at_already_stays_and_the_transaction_is_usable(
    engine: Engine, session: Session, small_slices: None
) -> None:
    Base.metadata.create_all(engine)

    def given() -> Iterator[Job]:
        first = Job("t")
        yield first
        yield from (Job("t") for _ in range(450))
        session.add(Order(job_id=first.id))
        session.flush()
        yield spoiled()

    with pytest.raises(PayloadError):
        brooq.enqueue_many(session, given())
    session.commit()

    assert len(jobs(engine)) == 400


def test_a_job_that_its_input_adds_to_the_session_is_the_sessions(engine: Engine, session: Session) -> None:
    def given() -> Iterator[Job]:
        for n in range(3):
            job = Job("t", n, idempotency_key=str(n) if n else None)
            yield job
            session.add(job)

    with noted() as notes:
        answers = brooq.enqueue_many(session, given())
        session.commit()

    assert [answer.created for answer in answers] == [True] * 3
    assert ids(answers) == [one.id for one in jobs(engine)]
    assert [dict(note.counts) for note in notes] == [{("t", True): 3}]


def test_the_first_of_two_objects_with_one_id_is_written(engine: Engine, session: Session) -> None:
    first, second = Job("t", 1, idempotency_key="K"), Job("t", 2, idempotency_key="K")
    brooq.enqueue_many(session, [first, second])
    session.rollback()
    assert first.id == second.id  # the id of what was there

    answers = brooq.enqueue_many(session, [first, second, first])
    session.commit()

    assert answers == [(first.id, True), (first.id, False), (first.id, False)]
    assert (first.created, second.created) == (True, False)
    assert [one.payload for one in jobs(engine)] == [1]


# -- COPY


TRICKY: dict[str, Any] = {
    "white space": "\t\n\r\v\x0b\x1f\x7f\u2028",
    "backslash": "\\ \\N \\. \\\\n \\u0000 \\t",
    "quote": "'\"",
    "percent": "100% %s %(x)s",
    "emoji": "\U0001f600",
    "\\.": [None, 1.5, True, {}],
}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_plain_jobs_go_by_copy_with_a_driver_whose_copy_we_know(database_url: URL, engine: Engine, driver: str) -> None:
    own = create_engine(database_url.set(drivername=f"postgresql+{driver}"))
    given = [Job("t", TRICKY, priority=n % 5 - 2) for n in range(250)]
    with Session(own) as session, session.begin():
        now = session.scalar(text("SELECT now()"))
        with recorded(own) as statements:
            answers = brooq.enqueue_many(session, given)

    inserts = [one for one in statements if "INSERT" in one]
    assert len(inserts) == (0 if driver == "psycopg" else 1)
    assert answers == [(job.id, True) for job in given]
    found = jobs(engine)
    assert all(one.payload == TRICKY and one.available_at == one.created_at == now for one in found)
    assert [(one.id, one.priority) for one in found] == [(job.id, job.priority) for job in given]
    own.dispose()


@pytest.mark.parametrize("driver", ["psycopg_async", "asyncpg"])
def test_an_async_session_writes_many_alike(database_url: URL, engine: Engine, driver: str, small_slices: None) -> None:
    given = [Job("t", TRICKY, idempotency_key=str(n) if n > 400 else None) for n in range(500)]
    statements: list[str] = []

    async def work() -> list[Enqueued]:
        own = create_async_engine(database_url.set(drivername=f"postgresql+{driver}"))
        event.listen(own.sync_engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
        async with AsyncSession(own) as session, session.begin():
            with pytest.raises(PayloadError):
                await brooq.aenqueue_many(session, (job for job in [*given, spoiled()]))
            assert await session.scalar(text("SELECT count(*) FROM job")) == 0
            statements.clear()
            answers = await brooq.aenqueue_many(session, given)
        await own.dispose()
        return answers

    answers = asyncio.run(work())

    assert answers == [(job.id, True) for job in given]
    assert [(one.id, one.payload) for one in jobs(engine)] == [(job.id, TRICKY) for job in given]
    assert len([one for one in statements if "INSERT" in one]) == (1 if driver == "psycopg_async" else 3)


def test_delays_and_times_of_many_are_by_the_databases_clock(engine: Engine, session: Session) -> None:
    now = session.scalar(text("SELECT now()"))
    moment = now + timedelta(days=3)
    shapes: list[Callable[[], Job]] = [
        lambda: Job("t"),
        lambda: Job("t", delay="5m"),
        lambda: Job("t", available_at=moment),
        lambda: Job("t", delay="0"),
    ]
    given = [shapes[n % 4]() for n in range(1_000)]

    brooq.enqueue_many(session, given)
    session.commit()

    expected = [now, now + timedelta(minutes=5), moment, now]
    assert [one.available_at for one in jobs(engine)] == expected * 250


def test_a_delay_is_as_long_in_a_zone_with_summer_time(engine: Engine, session: Session) -> None:
    session.execute(text("SET LOCAL TIME ZONE 'Europe/Berlin'"))
    days = [Job("t", delay=timedelta(days=n)) for n in range(0, 366, 30)]  # some of them over a change

    brooq.enqueue_many(session, days)
    single = brooq.enqueue(session, Job("t", delay=timedelta(days=182)))
    session.commit()

    assert [row(engine, job.id)["available_at"] - row(engine, job.id)["created_at"] for job in days] == [
        timedelta(days=n) for n in range(0, 366, 30)
    ]
    found = row(engine, single.id)
    assert found["available_at"] - found["created_at"] == timedelta(days=182)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("door", ["add_all", "enqueue_many"])
def test_ten_thousand_of_all_shapes_are_few_statements_and_answered_in_order(
    database_url: URL, engine: Engine, driver: str, door: str
) -> None:
    own = create_engine(database_url.set(drivername=f"postgresql+{driver}"))
    shapes: list[Callable[[int], Job]] = [
        lambda n: Job("t", n),
        lambda n: Job("t", n, idempotency_key=f"of its own {n}"),
        lambda n: Job("t", n, idempotency_key=f"of three {n % 3_000}"),
        lambda n: Job("t", n, delay="1m"),
    ]
    given = [shapes[n % 4](n) for n in range(10_000)]

    with Session(own, expire_on_commit=False) as session, session.begin(), recorded(own) as statements:
        if door == "add_all":
            session.add_all(given)
            session.flush()
            answers = [Enqueued(job.id, bool(job.created)) for job in given]
        else:
            answers = brooq.enqueue_many(session, given)

    assert len(statements) <= 15
    first: dict[str | None, Job] = {}
    for job, answer in zip(given, answers, strict=True):
        key = job.idempotency_key
        known = first.setdefault(key, job) if key else job
        assert answer == (known.id, known is job)
    assert {one.id for one in jobs(engine)} == {answer.id for answer in answers}
    own.dispose()


def test_many_that_are_there_already_are_no_error(engine: Engine, place: Any) -> None:
    given = [Job("t") for _ in range(300)]
    with Session(engine) as earlier, earlier.begin():
        brooq.enqueue_many(earlier, given[150:151])

    answers = brooq.enqueue_many(place, given)
    again = brooq.enqueue_many(place, given)
    place.execute(text("SELECT 1"))
    commit(place)

    assert [n for n, answer in enumerate(answers) if not answer.created] == [150]
    assert again == [(job.id, False) for job in given]
    assert len(jobs(engine)) == 300


def test_an_object_given_again_in_a_later_slice_is_one_job(
    engine: Engine, session: Session, small_slices: None
) -> None:
    given = [Job("t") for _ in range(250)]

    answers = brooq.enqueue_many(session, [*given, *given])
    session.commit()

    assert [answer.created for answer in answers] == [True] * 250 + [False] * 250
    assert ids(answers[:250]) == ids(answers[250:]) == [one.id for one in jobs(engine)]


def test_a_row_that_a_trigger_keeps_out_is_an_error_by_every_door(engine: Engine, session: Session) -> None:
    session.execute(text("CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"))
    session.execute(
        text(
            "CREATE TRIGGER keep_out BEFORE INSERT ON job FOR EACH ROW WHEN (NEW.payload = '7')"
            " EXECUTE FUNCTION keep_out()"
        )
    )
    session.commit()

    for given in ([Job("t", n) for n in range(200)], [Job("t", 7)]):
        with pytest.raises(BrooqError, match="neither inserted nor found"):
            brooq.enqueue_many(session, given)
        session.execute(text("SELECT 1"))


def test_a_table_with_row_level_security_takes_many(database_url: URL, engine: Engine) -> None:
    role = f"tenant_{database_url.database}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(f"GRANT ALL ON job TO {role}"))
        connection.execute(text("ALTER TABLE job ENABLE ROW LEVEL SECURITY"))
        connection.execute(text(f"CREATE POLICY ours ON job TO {role} USING (true) WITH CHECK (topic = 't')"))
    try:
        with Session(engine) as session, session.begin():
            session.execute(text(f"SET LOCAL ROLE {role}"))
            answers = brooq.enqueue_many(session, [Job("t") for _ in range(200)])
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))

    assert ids(answers) == [one.id for one in jobs(engine)]


def test_many_go_where_a_schema_is_translated_to(database_url: URL, engine: Engine) -> None:
    schema = '100% obrien "x" %(y)s'
    with engine.begin() as connection:
        quoted = engine.dialect.identifier_preparer.quote_identifier(schema)
        connection.exec_driver_sql(f"CREATE SCHEMA {quoted}", ())
        connection.exec_driver_sql(f"CREATE TABLE {quoted}.job (LIKE public.job INCLUDING ALL)", ())
    tenant = engine.execution_options(schema_translate_map={None: schema})

    with Session(tenant) as session, session.begin():
        with recorded(tenant) as statements:
            brooq.enqueue_many(session, [Job("t") for _ in range(200)])
        brooq.enqueue(session, Job("t", idempotency_key="K"))
        assert len(session.query(Job).all()) == 201

    assert not any("INSERT" in one for one in statements)
    assert jobs(engine) == []


def test_an_open_savepoint_of_the_consumers_takes_many_back(engine: Engine, session: Session) -> None:
    savepoint = session.begin_nested()
    brooq.enqueue_many(session, [Job("gone") for _ in range(200)])
    savepoint.rollback()
    with session.begin_nested():
        brooq.enqueue_many(session, [Job("kept") for _ in range(200)])

    with noted() as notes:
        session.commit()

    assert {one.topic for one in jobs(engine)} == {"kept"}
    assert [dict(note.counts) for note in notes] == [{("kept", True): 200}]


# -- broken off


@pytest.fixture
def locked(engine: Engine) -> Iterator[Callable[[], bool]]:
    """
    Hold a lock that every writer waits for; the function tells whether somebody does.
    """
    with engine.begin() as holder:
        holder.execute(text("LOCK TABLE job"))

        def someone_waits() -> bool:
            with engine.connect() as connection:
                return bool(connection.scalar(text(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {HERE}")))

        yield someone_waits


@pytest.mark.parametrize("driver", ["psycopg_async", "asyncpg"])
def test_a_canceled_task_leaves_no_broken_connection_behind(
    database_url: URL, engine: Engine, locked: Callable[[], bool], driver: str
) -> None:
    async def main() -> None:
        own = create_async_engine(database_url.set(drivername=f"postgresql+{driver}"), pool_size=1, max_overflow=0)

        async def enqueue() -> None:
            async with AsyncSession(own) as session, session.begin():
                await brooq.aenqueue_many(session, [Job("t") for _ in range(500)])

        task = asyncio.create_task(enqueue())
        while not locked():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with own.connect() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await own.dispose()

    asyncio.run(main())


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """
    What interrupts the test as Ctrl-C would.
    """
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_leaves_no_broken_connection_behind(
    database_url: URL, locked: Callable[[], bool], interrupt: Callable[[], None]
) -> None:
    own = create_engine(database_url, pool_size=1, max_overflow=0)

    def interrupt_it() -> None:
        eventually(locked)
        interrupt()

    interrupting = threading.Thread(target=interrupt_it)
    with pytest.raises(KeyboardInterrupt), Session(own) as session, session.begin():
        interrupting.start()
        brooq.enqueue_many(session, [Job("t") for _ in range(500)])
    interrupting.join()

    with own.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    own.dispose()


def test_a_connection_that_breaks_is_sqlalchemys_error(
    database_url: URL, engine: Engine, locked: Callable[[], bool]
) -> None:
    own = create_engine(database_url)

    def terminate() -> None:
        eventually(locked)
        with engine.begin() as connection:
            connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND {HERE}"))

    terminating = threading.Thread(target=terminate)
    terminating.start()
    with pytest.raises(OperationalError) as caught, Session(own) as session, session.begin():
        brooq.enqueue_many(session, [Job("t") for _ in range(500)])
    terminating.join()

    assert caught.value.connection_invalidated
    with own.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    own.dispose()
