"""
Calling jobs off, and running them once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import BrooqError, InvalidJob, Job, JobNotFound
from tests.consumer import LoggedJob
from tests.doors import PLACES, commit, stored, working_in
from tests.waiting import row


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Any]:
    with working_in(request.param, engine) as place:
        yield place


@pytest.mark.parametrize("state", ["pending", "failed", "processing"])
def test_cancel_calls_off_what_is_not_over(engine: Engine, place: Any, state: str) -> None:
    job_id = stored(engine, state)

    assert brooq.cancel(place, job_id) is True
    assert brooq.cancel(place, str(job_id)) is False
    commit(place)

    found = row(engine, job_id)
    assert found["state"] == "canceled"
    assert found["updated_at"] > found["created_at"]
    assert found["locked_by"] == ("w1" if state == "processing" else None)  # a trace


@pytest.mark.parametrize("state", ["done", "dead", "canceled"])
def test_cancel_never_overwrites_what_is_over(engine: Engine, session: Session, state: str) -> None:
    job_id = stored(engine, state)
    before = row(engine, job_id)

    assert brooq.cancel(session, job_id) is False
    session.commit()

    assert row(engine, job_id) == before


def test_cancel_and_replay_say_that_there_is_no_such_job(session: Session) -> None:
    nowhere = UUID(int=1)
    for door in (brooq.cancel, brooq.replay):
        with pytest.raises(JobNotFound, match=str(nowhere)) as caught:
            door(session, nowhere)
        assert caught.value.job_id == nowhere
        with pytest.raises(InvalidJob, match="job id 'order-42' is refused: a UUID, or its text"):
            door(session, "order-42")
        with pytest.raises(InvalidJob, match="is refused"):
            door(session, 5)  # type: ignore[arg-type]
    session.execute(text("SELECT 1"))


def test_a_cancel_that_a_trigger_keeps_out_is_not_taken_for_a_job_that_is_over(
    engine: Engine, session: Session
) -> None:
    job_id = stored(engine, "pending")
    with engine.begin() as connection:
        connection.execute(text("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"))
        connection.execute(text("CREATE TRIGGER keep BEFORE UPDATE ON job FOR EACH ROW EXECUTE FUNCTION keep()"))

    with pytest.raises(BrooqError, match=f"job {job_id} is pending, and was not canceled 50 times over: a trigger"):
        brooq.cancel(session, job_id)
    assert session.scalar(text("SELECT state FROM job")) == "pending"


def test_cancel_shows_in_the_sessions_object(engine: Engine, session: Session) -> None:
    job_id = stored(engine, "pending")
    held, another = session.get_one(Job, job_id), session.get_one(LoggedJob, job_id)

    with session.begin_nested() as savepoint:
        brooq.cancel(session, job_id)
        assert held.state == another.state == session.get_one(Job, job_id).state == "canceled"
        assert held.updated_at == session.scalar(text("SELECT updated_at FROM job")) > held.created_at
        savepoint.rollback()
    assert held.state == another.state == "pending"

    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET state = 'done'"))
    assert brooq.cancel(session, job_id) is False
    assert held.state == "done"


def test_cancel_finds_a_job_that_was_only_added(session: Session) -> None:
    job = Job("t")
    session.add(job)

    assert brooq.cancel(session, job.id) is True
    assert job.state == "canceled"


@pytest.mark.parametrize("state", ["done", "dead", "canceled"])
def test_a_replay_is_a_new_job_like_the_one_that_is_over(engine: Engine, place: Any, state: str) -> None:
    job_id = stored(engine, state)

    first = brooq.replay(place, job_id)
    second = brooq.replay(place, str(job_id))
    commit(place)

    found = row(engine, first.id)
    assert first.created
    assert second == (first.id, False)
    assert (found["topic"], found["priority"], found["state"], found["attempts"]) == ("t", 1, "pending", 0)
    assert found["idempotency_key"] == f"replay:{job_id}"
    assert found["meta"] == {"replays": str(job_id)}
    with engine.connect() as connection:
        assert set(connection.scalars(text("SELECT payload::text FROM job"))) == {'{"n": 1.00000000000000000001}'}


def test_of_several_jobs_the_one_that_is_meant_is_canceled_and_replayed(engine: Engine, session: Session) -> None:
    others = [stored(engine, state) for state in ("done", "pending", "dead")]
    waiting, over = stored(engine, "pending"), stored(engine, "done")
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET topic = 'meant', payload = '2' WHERE id = :id"), {"id": over})

    assert brooq.cancel(session, waiting) is True
    answer = brooq.replay(session, over)
    session.commit()

    assert answer.created
    assert (row(engine, answer.id)["topic"], row(engine, answer.id)["payload"]) == ("meant", 2)
    assert row(engine, waiting)["state"] == "canceled"
    assert [row(engine, other)["state"] for other in others] == ["done", "pending", "dead"]


@pytest.mark.parametrize("state", ["pending", "failed", "processing"])
def test_only_what_is_over_can_be_replayed(engine: Engine, session: Session, state: str) -> None:
    job_id = stored(engine, state)

    with pytest.raises(InvalidJob, match=f"job {job_id} is {state}: only a job that is done, dead or canceled"):
        brooq.replay(session, job_id)
    session.execute(text("SELECT 1"))
