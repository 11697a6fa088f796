"""
What ORM code may write in the row of a job, and what is the engine's alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, inspect, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified

from sqlalchemy_brooq import InvalidJob, Job, PayloadError, ProtectedColumn
from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.protection import ENGINE_COLUMNS
from tests.consumer import Order, keyed
from tests.recording import jobs, recorded
from tests.waiting import row


@pytest.fixture
def session(shop: Engine) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


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


def in_place(value: Any) -> Callable[[Job], None]:
    def change(job: Job) -> None:
        job.payload["late"] = value
        flag_modified(job, "payload")

    return change


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda job: setattr(job, "payload", {"when": datetime.now(UTC)}), "the payload is not JSON"),
        (lambda job: setattr(job, "meta", {"what": object()}), "the meta is not JSON"),
        (in_place(datetime.now(UTC)), "the payload is not JSON"),
        (in_place("\x00"), "the payload has a string with a NUL"),
        (in_place(float("nan")), "the payload is not JSON"),
    ],
)
def test_a_change_that_no_update_could_write_is_refused_before_any_sql(
    shop: Engine, session: Session, change: Callable[[Job], None], what: str, seen: bool
) -> None:
    job = Job("t", {"n": 1})
    session.add(job)
    session.commit()
    with session if seen else Session(shop) as later:
        job = later.get_one(Job, job.id)
        later.add(Order())
        job.priority = 2
        change(job)

        with recorded(shop) as statements, pytest.raises(PayloadError, match=what):
            later.flush()

        assert statements == []
        later.execute(text("SELECT 1"))
        later.commit()
        assert (job.priority, job.payload, job.meta) == (2, {"n": 1}, None)


def test_the_engines_serializer_decides_about_a_changed_payload_too(database_url: URL, shop: Engine) -> None:
    engine = create_engine(database_url, json_serializer=lambda value: json.dumps(value, default=datetime.isoformat))
    with Session(engine) as session:
        job = Job("t")
        session.add(job)
        session.commit()
        job.payload = {"when": datetime(2030, 5, 17, tzinfo=UTC)}
        session.commit()

    assert [one.payload for one in jobs(shop)] == [{"when": "2030-05-17T00:00:00+00:00"}]
    engine.dispose()


@pytest.mark.parametrize("column", sorted(JOB.c.keys() - ENGINE_COLUMNS.keys()))
def test_no_column_can_be_deleted_from_a_stored_job(session: Session, column: str) -> None:
    job = keyed()
    session.add(job)
    session.commit()

    with pytest.raises(InvalidJob, match=f"job.{column} can't be deleted from a stored job"):
        delattr(job, column)

    job.idempotency_key = None
    session.commit()
    assert job.idempotency_key is None


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
