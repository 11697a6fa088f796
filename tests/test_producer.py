"""
The doors by which jobs come in: what they write and what they answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job, intake
from tests.doors import DOORS, PLACES, SESSION_DOORS, Door, commit, insert_probe, probes, with_probe, working_in
from tests.recording import jobs, recorded
from tests.waiting import row


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Any]:
    with working_in(request.param, engine) as place:
        yield place


@pytest.fixture
def probed(engine: Engine) -> Engine:
    return with_probe(engine)


def test_an_enqueued_job_is_a_row_with_the_defaults(engine: Engine, session: Session) -> None:
    job = Job("email.send", {"to": "ada"})

    answer = brooq.enqueue(session, job)
    session.commit()

    found = row(engine, answer.id)
    assert answer == (job.id, True)
    assert found["topic"] == "email.send"
    assert found["payload"] == {"to": "ada"}
    assert (found["state"], found["attempts"], found["requeues"], found["priority"]) == ("pending", 0, 0, 0)
    assert found["available_at"] == found["created_at"] == found["updated_at"]
    untouched = ("claimed_at", "locked_by", "locked_until", "last_error", "result", "idempotency_key", "meta")
    assert [found[name] for name in untouched] == [None] * 7


def test_an_enqueued_object_is_persistent_and_shows_its_row_without_another_statement(
    engine: Engine, session: Session
) -> None:
    job = Job("t", delay="1h", priority=2)
    columns = inspect(Job).columns

    with recorded(engine) as statements:
        brooq.enqueue(session, job)
        shown = {column.key: getattr(job, column.key) for column in columns}

    assert inspect(job).persistent
    assert len(statements) == 1
    session.commit()
    assert shown == row(engine, job.id)


def test_a_rolled_back_job_never_exists(engine: Engine, session: Session) -> None:
    brooq.enqueue(session, Job("t"))
    brooq.enqueue_many(session, [Job("t")])
    session.rollback()

    assert jobs(engine) == []


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_the_time_is_the_databases(engine: Engine, session: Session, door: Door) -> None:
    moment = datetime.now(UTC) + timedelta(days=3)
    now = session.scalar(text("SELECT now()"))
    given = [Job("t"), Job("t", delay=timedelta(minutes=5)), Job("t", available_at=moment), Job("t", delay="0")]

    ids = [door(session, job).id for job in given]
    session.commit()

    assert [row(engine, job_id)["available_at"] for job_id in ids] == [now, now + timedelta(minutes=5), moment, now]


def test_every_door_writes_the_same_row(engine: Engine, session: Session) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    def variants(topic: str) -> list[Job]:
        return [
            Job(topic),
            Job(topic, {"a": [1, None]}, available_at=moment),
            Job(topic, None, delay="1h", priority=-2),
            Job(topic, "text", idempotency_key="d", priority=1),
            Job(topic, 5, idempotency_key=""),
            Job(topic, idempotency_key=" ", delay="1h"),
        ]

    for job in variants("single"):
        brooq.enqueue(session, job)
    session.add_all(variants("added"))
    brooq.enqueue_many(session, [*variants("many"), *(Job("filler") for _ in range(1_000))])
    brooq.enqueue_many(session.connection(), variants("bare"))
    for job in variants("late"):  # a flush listener of the consumer's may leave a plain one to the flush itself
        event.listen(session, "before_flush", lambda *_, late=job: session.add(late), once=True)
        session.add(Job("trigger"))
        session.flush()
    session.commit()

    written = [
        session.scalars(
            text("SELECT to_jsonb(job) - 'id' - 'topic' FROM job WHERE topic = :topic ORDER BY id"), {"topic": topic}
        ).all()
        for topic in ("single", "added", "many", "bare", "late")
    ]
    assert len(written[0]) == 6
    assert all(one == written[0] for one in written)


def test_values_of_the_producers_own_are_written_as_they_are(engine: Engine, session: Session) -> None:
    history = [Job("t"), Job("t", idempotency_key="k")]
    for job in history:
        job.state = "done"
        job.attempts = 3
        job.result = {"sum": 1}
        job.created_at = datetime(2020, 1, 1, tzinfo=UTC)
    session.add_all(history)
    session.commit()

    for job in history:
        found = row(engine, job.id)
        assert (found["state"], found["attempts"], found["result"]) == ("done", 3, {"sum": 1})
        assert found["created_at"] == job.created_at == datetime(2020, 1, 1, tzinfo=UTC)
        assert found["updated_at"] == job.updated_at > job.created_at


@pytest.mark.parametrize("door", DOORS)
def test_a_key_that_exists_is_no_error_and_no_second_row(probed: Engine, place: Any, door: Door) -> None:
    with Session(probed) as earlier, earlier.begin():
        first = brooq.enqueue(earlier, Job("t", {"n": 1}, idempotency_key="K"))

    insert_probe(place, 1)
    again = Job("t", {"n": 2}, idempotency_key="K")
    second = door(place, again)
    place.execute(text("SELECT 1"))
    insert_probe(place, 2)
    assert second == (first.id, False) == (again.id, again.created)
    commit(place)

    assert probes(probed) == {1, 2}
    assert [one.payload for one in jobs(probed)] == [{"n": 1}]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_key_that_exists_leaves_pending_objects_pending(database_url: URL, driver: str) -> None:
    engine = engine_of(database_url, driver)
    with Session(engine) as session, session.begin():
        first = brooq.enqueue(session, Job("t", idempotency_key="K"))

    with Session(engine, autoflush=False) as session, session.begin():
        other = Job("other")
        session.add(other)
        second = brooq.enqueue(session, Job("t", idempotency_key="K"))
        assert other in session.new

    assert second == (first.id, False)
    assert len(jobs(engine)) == 2
    engine.dispose()


def engine_of(url: URL, driver: str) -> Engine:
    """
    Return an engine on the test's database with another driver.
    """
    return create_engine(url.set(drivername=f"postgresql+{driver}"))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_every_shape_goes_through_every_driver(database_url: URL, driver: str) -> None:
    engine = engine_of(database_url, driver)
    tricky = {"percent": "100% %s %(x)s", "quote": 'it\'s "q" \\u0000 \\', "ü": ["\U0001f600", None, 1.5, True]}
    with Session(engine) as session, session.begin():
        given = [
            Job("t", tricky, delay="90s"),
            Job("t", available_at=datetime(2040, 1, 1, tzinfo=UTC)),
            Job("t", idempotency_key="% 'k' :x"),
        ]
        answers = brooq.enqueue_many(session, given)
        assert brooq.enqueue(session, Job("t", idempotency_key="% 'k' :x")) == (answers[2].id, False)
        assert brooq.cancel(session, answers[0].id)
        assert brooq.replay(session, answers[0].id).created
        assert not brooq.replay(session, str(answers[0].id)).created

    first, _, third, again = jobs(engine)
    assert first.payload == again.payload == tricky
    assert first.available_at == first.created_at + timedelta(seconds=90)
    assert third.idempotency_key == "% 'k' :x"
    engine.dispose()


def test_a_key_belongs_to_its_topic_and_the_empty_one_is_none(engine: Engine, session: Session) -> None:
    keys = [("t", "K"), ("u", "K"), ("t", ""), ("t", ""), ("t", None), ("t", " "), ("t", " ")]

    answers = [brooq.enqueue(session, Job(topic, idempotency_key=key)) for topic, key in keys]
    session.commit()

    assert [answer.created for answer in answers] == [True] * 6 + [False]
    assert [one.idempotency_key for one in jobs(engine)] == ["K", "K", None, None, None, " "]


@pytest.mark.parametrize("state", ["done", "dead", "canceled", "failed"])
def test_a_key_stays_taken_whatever_became_of_its_job(engine: Engine, session: Session, state: str) -> None:
    first = brooq.enqueue(session, Job("t", idempotency_key="K"))
    session.execute(text("UPDATE job SET state = :state"), {"state": state})
    session.commit()

    assert brooq.enqueue(session, Job("t", idempotency_key="K")) == (first.id, False)
    assert [one.state for one in jobs(engine)] == [state]


@pytest.mark.parametrize("key", [None, "K"])
@pytest.mark.parametrize("door", DOORS)
def test_an_object_given_twice_is_one_job(engine: Engine, place: Any, door: Door, key: str | None) -> None:
    brooq.enqueue_many(place, [Job("t"), Job("other", idempotency_key=key), Job("t", idempotency_key="another")])
    job = Job("t", idempotency_key=key)

    assert door(place, job) == (job.id, True)
    assert door(place, job) == (job.id, False)
    assert brooq.enqueue_many(place, [job, job]) == [(job.id, False)] * 2
    place.execute(text("SELECT 1"))


@pytest.mark.parametrize("unset", [lambda job: delattr(job, "id"), lambda job: setattr(job, "id", None)])
@pytest.mark.parametrize("key", [None, "K"])
@pytest.mark.parametrize("door", SESSION_DOORS)
def test_an_object_without_an_id_gets_one(
    engine: Engine, session: Session, door: Door, key: str | None, unset: Callable[[Job], None]
) -> None:
    job = Job("t", idempotency_key=key)
    unset(job)

    answer = door(session, job)
    session.commit()

    assert answer == (job.id, True)
    assert [one.id for one in jobs(engine)] == [job.id]


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_a_job_without_meta_has_none_in_its_row(session: Session, door: Door) -> None:
    door(session, Job("t"))
    brooq.enqueue_many(session, [Job("t"), Job("t", idempotency_key="K")])
    brooq.enqueue_many(session, [Job("t") for _ in range(intake.COPY_FROM)])

    assert session.scalar(text("SELECT count(*) FROM job WHERE meta IS NOT NULL")) == 0  # nor JSON's null


def test_an_object_of_an_earlier_session_is_there_already(engine: Engine, session: Session) -> None:
    with Session(engine) as earlier, earlier.begin():
        job = Job("t")
        job_id = brooq.enqueue(earlier, job).id

    assert brooq.enqueue(session, job) == (job_id, False)
    assert job in session


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_an_object_of_another_session_is_refused_before_any_sql(engine: Engine, session: Session, door: Door) -> None:
    with Session(engine) as other:
        job = Job("t")
        other.add(job)
        with recorded(engine) as statements, pytest.raises(InvalidRequestError, match="already attached"):
            door(session, job)

    assert statements == []


def test_many_are_a_handful_of_statements_and_answered_in_order(engine: Engine, session: Session) -> None:
    brooq.enqueue(session, Job("t", idempotency_key="7"))
    given = [Job("t", n, idempotency_key=str(n) if n % 2 else None) for n in range(2_500)]

    with recorded(engine) as statements:
        answers = brooq.enqueue_many(session, (job for job in given))
    session.commit()

    assert len(statements) == 5  # a savepoint for COPY and its release, twice the keyed ones, a look for what was there
    assert [answer.id for answer in answers] == [job.id for job in given]
    assert [n for n, answer in enumerate(answers) if not answer.created] == [7]
    assert all(inspect(job).transient for job in given)
    assert len(jobs(engine)) == 2_500


def test_of_two_with_one_key_the_first_given_is_written(engine: Engine, session: Session) -> None:
    second, first = Job("t", 2, idempotency_key="K"), Job("t", 1, idempotency_key="K")
    plain = Job("t")

    answers = brooq.enqueue_many(session, [plain, first, second, plain, first])
    session.commit()

    assert [(one.id == first.id, one.created) for one in answers[1:3]] == [(True, True), (True, False)]
    assert answers[3:] == [(plain.id, False), (first.id, False)]
    assert [one.payload for one in jobs(engine)] == [1, {}]


def test_none_at_all_is_no_statement(engine: Engine, session: Session) -> None:
    with recorded(engine) as statements:
        assert brooq.enqueue_many(session, []) == []

    assert statements == []


@pytest.mark.parametrize("autoflush", [True, False])
def test_many_may_include_objects_that_were_added(engine: Engine, autoflush: bool) -> None:
    with Session(engine, autoflush=autoflush) as session, session.begin():
        added, keyed, other = Job("t"), Job("t", idempotency_key="K"), Job("t")
        session.add_all([added, keyed])
        twin = Job("t", idempotency_key="K")
        answers = brooq.enqueue_many(session, [other, added, twin, added, keyed])
        expected = [(other.id, True), (added.id, True), (keyed.id, False), (added.id, False), (keyed.id, True)]

    assert answers == expected
    assert len(jobs(engine)) == 3
