"""
When a job is due: the longest delay and the outermost moments, of which every one that is taken can be stored and read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, select
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import InvalidJob, Job
from tests.queues import MakeQueue
from tests.recording import jobs, recorded
from tests.waiting import eventually, row

CENTURY = timedelta(days=36_500)
MICROSECOND = timedelta(microseconds=1)
WEST, EAST = timezone(-timedelta(hours=23, minutes=59)), timezone(timedelta(hours=23, minutes=59))
FIRST = datetime(2, 1, 1, tzinfo=EAST)  # the year 1 in UTC
LAST = datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=WEST)  # the year 9999 in UTC
BEYOND = r"^available_at .* is refused: the years 2 to 9998 are taken$"

Door = Callable[[Session, Job], Any]


def by_add(session: Session, job: Job) -> None:
    session.add(job)


def by_enqueue_many(session: Session, job: Job) -> None:
    brooq.enqueue_many(session, [job])


DOORS = [by_add, brooq.enqueue, by_enqueue_many]


# -- delays


@pytest.mark.parametrize("delay", ["36500d", "876000h", CENTURY])
@pytest.mark.parametrize("door", DOORS)
def test_a_delay_of_a_century_is_stored(engine: Engine, session: Session, door: Door, delay: str | timedelta) -> None:
    job = Job("t", delay=delay)

    door(session, job)
    session.commit()

    found = row(engine, job.id)
    assert found["available_at"] == found["created_at"] + CENTURY


@pytest.mark.parametrize("delay", ["36501d", "999999999d", "876000h1ms", CENTURY + MICROSECOND, timedelta.max])
def test_a_longer_delay_is_refused_before_it_reaches_the_server(delay: str | timedelta) -> None:
    with pytest.raises(InvalidJob, match=r"^delay .* is refused: at most 36500 days are taken$") as refusal:
        Job("t", delay=delay)

    assert repr(delay) in str(refusal.value)


@pytest.mark.parametrize(
    ("delay", "fault"),
    [
        ("-1s", "'-1s' is negative"),
        (-MICROSECOND, "-0.001ms is negative"),
        ("30", "'30' has a number with no unit"),
        (30, "30 has no unit"),
        ("1000000000d", "'1000000000d' is too long"),
    ],
)
def test_what_is_no_delay_is_refused_in_the_words_of_durations(delay: Any, fault: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        Job("t", delay=delay)

    assert str(refusal.value).startswith(f"delay is refused: {fault}")


def test_a_refused_delay_leaves_the_transaction_as_it_was(engine: Engine, session: Session) -> None:
    brooq.enqueue(session, Job("before"))

    with recorded(engine) as statements, pytest.raises(InvalidJob):
        brooq.enqueue(session, Job("refused", delay="999999999d"))
    brooq.enqueue(session, Job("after"))
    session.commit()

    assert statements == []
    assert [job.topic for job in jobs(engine)] == ["before", "after"]


# -- moments


@pytest.mark.parametrize("moment", [FIRST, LAST])
@pytest.mark.parametrize("door", DOORS)
def test_the_first_and_the_last_moment_are_stored(
    engine: Engine, session: Session, door: Door, moment: datetime
) -> None:
    job = Job("t", available_at=moment)

    door(session, job)
    session.commit()

    assert row(engine, job.id)["available_at"] == moment


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "UTC", "Etc/GMT-14"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_the_first_and_the_last_moment_are_read_in_every_time_zone(
    session: Session, database_url: URL, driver: str, zone: str
) -> None:
    brooq.enqueue_many(session, [Job("t", available_at=moment) for moment in (FIRST, LAST)])
    session.commit()
    elsewhere = create_engine(
        database_url.set(drivername=f"postgresql+{driver}"),
        poolclass=NullPool,
        connect_args={"options": f"-c TimeZone={zone}"},
    )

    with Session(elsewhere) as reader:
        found = list(reader.scalars(select(Job.available_at).order_by(Job.available_at)))

    assert found == [FIRST, LAST]


def test_a_job_that_is_due_since_the_first_moment_runs(engine: Engine, session: Session, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    seen: list[datetime] = []
    queue.register("t", lambda claim: seen.append(claim.available_at))
    job = Job("t", available_at=FIRST)
    brooq.enqueue(session, job)
    session.commit()

    queue.start()

    eventually(lambda: row(engine, job.id)["state"] == "done")
    assert seen == [FIRST]


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=UTC),
        datetime(1, 12, 31, 23, tzinfo=WEST),
        datetime(9999, 1, 1, tzinfo=EAST),
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=WEST),
    ],
)
def test_a_moment_beyond_them_is_refused_also_where_it_is_assigned(moment: datetime) -> None:
    job = Job("t")

    with pytest.raises(InvalidJob, match=BEYOND):
        Job("t", available_at=moment)
    with pytest.raises(InvalidJob, match=BEYOND):
        job.available_at = moment
