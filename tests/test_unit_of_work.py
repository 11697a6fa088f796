"""
``session.add(Job(...))``: what becomes of the rows, of the objects, and of what points at them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, select, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import InvalidJob, Job, PayloadError, metadata
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.consumer import Batch, Entry, LoggedJob, Order, Parcel, committed, keyed
from tests.recording import jobs, recorded


@pytest.fixture
def session(shop: Engine) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


def test_what_the_flush_of_several_jobs_has_written_is_known_without_asking(shop: Engine, session: Session) -> None:
    added = [Job("t"), Job("t", idempotency_key="K"), Job("t", delay="1h")]
    session.add_all(added)
    session.flush()

    with recorded(shop) as statements:
        known = [(job.created_at, job.updated_at, job.available_at) for job in added]

    assert statements == []
    assert known == [
        tuple(row) for row in session.execute(text("SELECT created_at, updated_at, available_at FROM job ORDER BY id"))
    ]


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


@pytest.mark.parametrize("expires", [True, False])
def test_a_job_that_is_written_by_the_commit_shows_its_row_before_and_after(shop: Engine, expires: bool) -> None:
    seen: list[tuple[timedelta, Job]] = []

    def look(*_: object) -> None:
        seen.extend((job.available_at - job.created_at, job) for job in [late, *many])

    with Session(shop, expire_on_commit=expires) as session:
        event.listen(session, "after_flush_postexec", look, once=True)
        late, *many = [Job("t", delay="1h"), *(Job("t") for _ in range(3))]
        session.add(late)
        session.add_all(many)
        session.commit()
        with recorded(shop) as statements:
            shown = [(job.available_at - job.created_at, job) for job in [late, *many]]

    hour, none = timedelta(hours=1), timedelta(0)
    assert seen == shown == [(hour, late), *((none, job) for job in many)]
    assert [one.available_at for one in jobs(shop)] == [job.available_at for job in [late, *many]]
    assert len(statements) == (4 if expires else 0)


def test_a_job_that_is_prepared_shows_its_row_until_the_commit() -> None:
    with LocalPostgres(durable=False, settings={"max_prepared_transactions": "2"}) as server:
        engine = create_engine(server.url())
        metadata.create_all(engine)
        with Session(engine, twophase=True) as session:
            job = Job("t", delay="1h")
            session.add(job)
            session.prepare()
            assert job.available_at - job.created_at == timedelta(hours=1)
            session.commit()
        engine.dispose()


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


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_what_cannot_be_without_its_job_moves_to_the_one_that_is_there(
    shop: Engine, session: Session, exists: bool, held: bool
) -> None:
    there = committed(shop) if exists else None
    holder = session.get(LoggedJob, there) if exists and held else None
    first, second = (LoggedJob("t", idempotency_key="K") for _ in range(2))
    first.parcels.append(Parcel(id=1))
    session.add_all([first, Parcel(id=2, job=second)])

    session.commit()

    parcels = session.scalars(select(Parcel).order_by(Parcel.id)).all()
    assert [parcel.id for parcel in parcels] == [1, 2]
    assert {parcel.job for parcel in parcels} == {holder or first}
    assert [one.id for one in jobs(shop)] == [there or first.id]


@pytest.mark.filterwarnings("error")
def test_a_rolled_back_jobs_collections_can_still_be_changed(shop: Engine, session: Session) -> None:
    job = LoggedJob("t")
    job.parcels.append(Parcel())
    session.add(job)
    session.flush()
    session.rollback()

    job.parcels.append(Parcel())
    session.add(job)
    session.commit()

    assert len(session.scalars(select(Parcel).where(Parcel.job_id == job.id)).all()) == 2


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
