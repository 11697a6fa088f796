"""
``session.add(Job(...))``: what becomes of the rows, of the objects, and of what points at them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Engine, ForeignKey, Table, create_engine, event, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import InvalidJob, Job, PayloadError, ProtectedColumn
from tests.recording import jobs, recorded
from tests.waiting import row


class Base(DeclarativeBase):
    pass


batch_job = Table(
    "batch_job",
    Base.metadata,
    Column("batch_id", ForeignKey("batch.id"), primary_key=True),
    Column("job_id", ForeignKey(Job.id), primary_key=True),
)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship(Job)


class Batch(Base):
    __tablename__ = "batch"

    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = relationship(Job, secondary=batch_job)
    group: Mapped[set[Job]] = relationship(Job, secondary=batch_job, overlaps="jobs")


class Entry(Base):
    __tablename__ = "entry"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))


class LoggedJob(Job):
    """
    A job with a relationship of its own, which the other side doesn't know of.
    """

    entries: Mapped[list[Entry]] = relationship(Entry)


@pytest.fixture
def shop(engine: Engine) -> Iterator[Engine]:
    """
    The test's database with the consumer's tables, which point at ours.
    """
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(shop: Engine) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


def keyed(key: str = "K", payload: Any = None) -> Job:
    return Job("t", payload, idempotency_key=key)


def committed(engine: Engine, key: str = "K") -> UUID:
    with Session(engine) as session, session.begin():
        return brooq.enqueue(session, keyed(key, "theirs")).id


# -- new jobs


def test_a_thousand_added_jobs_of_all_shapes_are_a_handful_of_statements(shop: Engine, session: Session) -> None:
    shapes: list[Callable[[int], Job]] = [
        lambda n: Job("t", n),
        lambda n: Job("t", n, idempotency_key=f"k{n}"),
        lambda n: Job("t", n, delay="1m"),
        lambda n: Job("t", n, available_at=datetime(2030, 1, 1, tzinfo=UTC)),
    ]
    added = [shapes[n % 4](n) for n in range(1_000)]

    with recorded(shop) as statements:
        session.add_all(added)
        session.flush()

    assert len(statements) == 1
    assert all(inspect(job).persistent and job.created for job in added)
    session.commit()
    assert [one.payload for one in jobs(shop)] == list(range(1_000))


def test_an_added_job_shows_its_row_without_another_statement(shop: Engine, session: Session) -> None:
    job = Job("t")
    session.add(job)

    with recorded(shop) as statements:
        session.flush()
        assert (job.state, job.attempts, job.locked_by, job.result) == ("pending", 0, None, None)
        assert job.available_at == job.created_at == job.updated_at

    assert len(statements) == 1


def test_what_points_at_a_new_job_is_written_with_it(shop: Engine, session: Session) -> None:
    order = Order(job=keyed())
    session.add(order)
    session.commit()

    assert order.job_id == jobs(shop)[0].id


def test_a_session_without_jobs_keeps_nothing_of_ours(shop: Engine) -> None:
    with Session(shop) as session, session.begin():
        session.add(Order())
        session.flush()
        with session.begin_nested():
            session.add(Order())

    assert session.info == {}


def test_objects_that_nobody_needs_are_let_go(shop: Engine, session: Session) -> None:
    job = keyed()
    gone = weakref.ref(job)
    session.add(job)
    session.flush()

    del job
    gc.collect()

    assert gone() is None
    session.rollback()


# -- keys that exist


def test_an_added_key_that_exists_is_no_error_and_no_second_row(shop: Engine, session: Session) -> None:
    there = committed(shop)
    job = keyed(payload="ours")
    own = job.id
    order = Order(job=job)
    session.add(order)

    session.flush()

    assert own != there
    assert (job.id, job.created) == (there, False)
    assert inspect(job).persistent
    assert job.payload == "theirs"
    session.commit()
    assert order.job_id == there
    assert [one.id for one in jobs(shop)] == [there]


def test_of_two_with_one_key_in_a_flush_one_is_written_and_everything_points_at_it(
    shop: Engine, session: Session
) -> None:
    first, second = keyed(payload=1), keyed(payload=2)
    orders = [Order(job=first), Order(job=second)]
    batches = [Batch(jobs=[Job("t"), second, Job("t")]), Batch(jobs=[second, first]), Batch(group={second})]
    session.add_all([*orders, *batches])

    session.flush()

    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    assert inspect(second).transient
    for _ in range(2):
        assert [order.job for order in orders] == [first, first]
        assert first in batches[0].jobs
        assert len(batches[0].jobs) == 3
        assert batches[1].jobs == [first]
        assert batches[2].group == {first}
        session.commit()
    assert len(jobs(shop)) == 3


def test_a_row_that_the_session_holds_keeps_its_object(shop: Engine, session: Session) -> None:
    held = session.get_one(Job, committed(shop))
    old_order = Order()
    session.add(old_order)
    session.flush()

    twin = keyed()
    old_order.job = twin
    new_order = Order(job=twin)
    session.add(new_order)
    session.commit()

    assert (twin.id, twin.created, inspect(twin).transient) == (held.id, False, True)
    assert old_order.job is held
    assert new_order.job is held
    assert brooq.enqueue(session, keyed()) == (held.id, False)


def test_a_row_that_the_session_is_about_to_delete_is_no_answer(shop: Engine, session: Session) -> None:
    old = session.get_one(Job, committed(shop))
    session.delete(old)
    new = keyed()
    session.add(new)

    with pytest.raises(InvalidJob, match="about to delete: flush the deletion first"):
        session.flush()

    session.flush()
    session.add(new)
    session.commit()
    assert [one.id for one in jobs(shop)] == [new.id] != [old]


# -- rollbacks


@pytest.fixture(params=["rollback", "close", "savepoint", "released savepoint", "failed flush"])
def undone(request: pytest.FixtureRequest, session: Session) -> Callable[[Callable[[], None]], None]:
    """
    Every way in which what was done in a session comes to nothing.
    """

    def undo(work: Callable[[], None]) -> None:
        if request.param == "savepoint":
            with session.begin_nested() as savepoint:
                work()
                savepoint.rollback()
        elif request.param == "released savepoint":
            with session.begin_nested() as savepoint:
                with session.begin_nested():
                    work()
                savepoint.rollback()
        elif request.param == "failed flush":
            work()
            session.add_all([Order(id=1), Order(id=1)])
            with pytest.raises(Exception, match=r"orders_pkey|conflicts with persistent"):
                session.flush()
            session.rollback()
        else:
            work()
            getattr(session, request.param)()

    return undo


@pytest.mark.filterwarnings("ignore:New instance .* with identity key:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("door", ["add", "enqueue"])
@pytest.mark.parametrize("exists", [False, True])
def test_what_was_rolled_back_is_inserted_when_added_again(
    shop: Engine, session: Session, undone: Callable[..., None], door: str, exists: bool
) -> None:
    there = committed(shop) if exists else None
    plain, unique, twin = Job("t", 1, delay="1h"), keyed(payload=2), keyed(payload=3)
    given = [plain, unique, twin]
    before = [{**job.__dict__, "_sa_instance_state": None} for job in given]

    def work() -> None:
        if door == "add":
            session.add_all(given)
            session.flush()
        else:
            for job in given:
                brooq.enqueue(session, job)
        assert plain.state == "pending"
        assert twin.created is False
        session.expire_all()

    undone(work)

    assert all(inspect(job).transient for job in given)
    assert [{**job.__dict__, "_sa_instance_state": None} for job in given] == before
    session.add_all(given)
    session.commit()
    if exists:
        with shop.begin() as connection:
            connection.execute(text("DELETE FROM job WHERE id = :id"), {"id": there})
        assert [one.payload for one in jobs(shop)] == [1]
    else:
        assert [(one.id, one.payload) for one in jobs(shop)] == [(plain.id, 1), (unique.id, 2)]


def test_a_released_savepoint_is_no_rollback(shop: Engine, session: Session) -> None:
    with session.begin_nested():
        job = keyed()
        session.add(job)
    with session.begin_nested() as other:
        session.add(Job("t"))
        session.flush()
        other.rollback()

    assert inspect(job).persistent
    session.commit()
    assert [one.id for one in jobs(shop)] == [job.id]


def test_a_relationship_survives_the_rollback_of_its_job(shop: Engine, session: Session) -> None:
    order = Order(job=keyed())
    session.add(order)
    session.flush()
    session.rollback()

    session.add(order)
    session.commit()

    assert order.job_id == jobs(shop)[0].id


def test_on_an_autocommit_engine_the_retry_finds_what_was_written(database_url: Any) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        job = Job("t")
        session.add(job)
        session.flush()
        session.rollback()  # in vain
        session.add(job)
        session.commit()
        assert job.created is False

    assert len(jobs(engine)) == 1
    engine.dispose()


@pytest.mark.parametrize("exists", [False, True])
def test_relationships_of_the_jobs_own_are_written_too(shop: Engine, session: Session, exists: bool) -> None:
    there = committed(shop) if exists else None
    job = LoggedJob("t", idempotency_key="K")
    job.entries.append(Entry())
    session.add(job)

    session.flush()
    assert session.scalars(select(Entry.job_id)).all() == [there or job.id]
    session.rollback()

    session.add(job)
    session.commit()
    assert session.scalars(select(Entry.job_id)).all() == [there or job.id]


# -- listeners of the consumer's


def test_listeners_of_the_consumers_find_new_jobs_and_may_change_them(shop: Engine) -> None:
    class TenantSession(Session):
        pass

    flushed: list[int] = []

    @event.listens_for(TenantSession, "before_flush")
    def stamp(session: Session, *_: Any) -> None:
        for job in [one for one in session.new if isinstance(one, Job)]:
            job.payload["tenant"] = 7
            if job.topic == "t":
                session.add(Job("audit", {}, idempotency_key=str(job.id)))

    event.listen(TenantSession, "after_flush", lambda *_: flushed.append(1))
    there = committed(shop)

    with TenantSession(shop) as session, session.begin():
        session.add_all([Job("t", {}) for _ in range(10)])
        with recorded(shop) as statements:
            session.flush()
        session.add(keyed(payload={}))  # a flush of nothing but what is there already is one all the same

    assert len(statements) == 1
    assert len(flushed) == 2
    written = [one for one in jobs(shop) if one.id != there]
    assert [one.topic for one in written] == ["t"] * 10 + ["audit"] * 11
    assert all(one.payload == {"tenant": 7} for one in written if one.topic == "t")


def listen(session: Session, name: str, make: Callable[[], None]) -> None:
    event.listen(session, name, lambda *_: make(), once=True)


@pytest.mark.parametrize("name", ["before_flush", "after_flush"])
@pytest.mark.parametrize("seen", [False, True])
def test_jobs_of_a_flush_listener_are_written_once(shop: Engine, session: Session, name: str, seen: bool) -> None:
    there = committed(shop)
    made = [Job("t"), keyed(), keyed("new"), keyed("new"), Job("t", delay="1m")]
    listen(session, name, lambda: session.add_all(made))
    if seen:
        session.add(Job("first"))
    session.add(Order())

    session.commit()

    assert [job.created for job in made] == [True, False, True, False, True]
    assert {one.id for one in jobs(shop) if one.topic == "t"} == {there, made[0].id, made[2].id, made[4].id}


@pytest.mark.parametrize("name", ["before_flush", "after_flush"])
@pytest.mark.parametrize("seen", [False, True])
def test_a_flush_listener_may_enqueue(shop: Engine, session: Session, name: str, seen: bool) -> None:
    there = committed(shop)
    made = [Job("t"), keyed(), keyed("new")]
    answers: list[Any] = []
    listen(session, name, lambda: answers.extend(brooq.enqueue(session, job) for job in [*made, *made]))
    if seen:
        session.add(Job("first"))
    session.add(Order())

    session.flush()
    written = session.scalars(select(Job.id).where(Job.topic == "t")).all()
    session.commit()

    expected = [(made[0].id, True), (there, False), (made[2].id, True)]
    assert answers == [*expected, *((job_id, False) for job_id, _ in expected)]
    assert set(written) == {there, made[0].id, made[2].id} == {one.id for one in jobs(shop) if one.topic == "t"}


def test_plain_jobs_of_a_flush_listener_are_one_statement(shop: Engine, session: Session) -> None:
    made = [Job("t") for _ in range(100)]
    listen(session, "before_flush", lambda: session.add_all(made))
    session.add(Order())

    with recorded(shop) as statements:
        session.flush()

    assert len([one for one in statements if "INSERT INTO job" in one]) == 1
    session.rollback()
    assert all(inspect(job).transient and job.created is None for job in made)
    assert all("state" not in job.__dict__ for job in made)


@pytest.mark.parametrize("exists", [False, True])
def test_what_points_at_a_job_of_a_flush_listener_points_at_the_right_one(
    shop: Engine, session: Session, exists: bool
) -> None:
    if exists:
        committed(shop)
    orders, batch = [Order(), Order(), Order()], Batch()

    def make() -> None:
        for order in orders:
            order.job = keyed()
        batch.jobs.append(keyed())
        batch.jobs.append(keyed())

    listen(session, "before_flush", make)
    session.add_all([*orders, batch])
    session.commit()

    (job,) = jobs(shop)
    assert [order.job_id for order in orders] == [job.id] * 3
    assert [one.id for one in batch.jobs] == [job.id]


# -- refusals


def test_a_refused_job_leaves_the_session_and_the_rest_goes_on(shop: Engine, session: Session) -> None:
    good, bad, worse = Job("t"), Job("t"), keyed()
    bad.payload["late"] = "\x00"
    worse.payload = {}
    worse.payload["late"] = float("nan")
    session.execute(text("SELECT 1"))
    session.add_all([Order(), good, bad, worse])

    with recorded(shop) as statements, pytest.raises(PayloadError):
        session.flush()

    assert statements == []
    assert inspect(bad).transient
    assert inspect(worse).transient
    session.commit()
    assert [one.id for one in jobs(shop)] == [good.id]


def test_a_job_without_a_topic_is_refused(session: Session) -> None:
    session.add(inspect(Job).class_manager.new_instance())

    with pytest.raises(InvalidJob, match="topic '' is refused"):
        session.flush()


# -- what is the engine's


ENGINE_VALUES = {
    "state": "done",
    "attempts": 1,
    "requeues": 1,
    "claimed_at": None,
    "locked_by": "me",
    "locked_until": None,
    "last_error": "none",
    "result": {},
}


@pytest.mark.parametrize("column", ENGINE_VALUES)
def test_engine_columns_cannot_be_assigned_once_there_is_a_row(session: Session, column: str) -> None:
    job = Job("t")
    session.add(job)
    session.commit()
    way_out = "call cancel.* replay" if column == "state" else "the engine alone writes it"

    for stage in ("persistent", "detached"):
        assert getattr(inspect(job), stage)
        with pytest.raises(ProtectedColumn, match=rf"job\.{column} can't be assigned or deleted: {way_out}"):
            setattr(job, column, ENGINE_VALUES[column])
        with pytest.raises(ProtectedColumn, match=column):
            delattr(job, column)
        session.close()


def test_a_merged_older_copy_never_brings_back_its_state(shop: Engine, session: Session) -> None:
    job = Job("t")
    session.add(job)
    session.commit()
    session.refresh(job)
    session.expunge(job)
    with shop.begin() as connection:
        connection.execute(text("UPDATE job SET state = 'done', attempts = 1"))

    job.priority = 2
    merged = session.merge(job)
    session.commit()

    assert (merged.state, merged.attempts, merged.priority) == ("done", 1, 2)
    found = row(shop, job.id)
    assert (found["state"], found["attempts"], found["priority"]) == ("done", 1, 2)


def test_a_new_job_can_be_merged(shop: Engine, session: Session) -> None:
    merged = session.merge(keyed(payload=5))
    again = session.merge(keyed(payload=6))
    session.flush()
    late = session.merge(Job("t", 7, delay="1h"))
    session.commit()

    assert merged.created
    assert again.created is False
    assert [one.payload for one in jobs(shop)] == [5, 7]
    assert late.available_at - late.created_at == timedelta(hours=1)
    moved = Job("t", 8, delay="2h")
    moved.id = late.id
    session.merge(moved)
    session.commit()
    assert late.available_at - late.updated_at == timedelta(hours=2)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("topic", "UPPER"),
        ("payload", "\x00"),
        ("payload", float("nan")),
        ("priority", 3),
        ("priority", None),
        ("idempotency_key", "\x00"),
        ("available_at", "tomorrow"),
        ("available_at", None),
    ],
)
def test_producer_columns_are_checked_where_they_are_assigned(session: Session, column: str, value: Any) -> None:
    job = Job("t")
    session.add(job)
    session.commit()

    with pytest.raises(InvalidJob):
        setattr(job, column, value)

    job.priority = 1
    job.payload = {"n": 1}
    job.available_at = text("now() + interval '1 h'")  # type: ignore[assignment]
    session.commit()
    assert job.updated_at > job.created_at
    assert job.available_at > job.updated_at


def test_a_job_that_is_deleted_and_a_foreign_row_that_fails_are_the_consumers_own(
    shop: Engine, session: Session
) -> None:
    job = Job("t")
    session.add(job)
    session.commit()

    session.delete(job)
    session.commit()
    assert jobs(shop) == []
    session.add(Order(id=1, job_id=UUID(int=1)))
    with pytest.raises(IntegrityError):
        session.flush()
