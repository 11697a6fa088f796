"""
What may be said about a job: each argument's rule, and an error that names the value, the rule and the way out.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from enum import IntEnum, StrEnum
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, inspect
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import BrooqError, InvalidJob, Job
from sqlalchemy_brooq.model import MAX_DELAY
from tests.recording import jobs

topics = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,254}", fullmatch=True)


class Topic(StrEnum):
    SEND = "email.send"


class Level(IntEnum):
    HIGH = 2


def test_a_job_is_what_was_said() -> None:
    moment = datetime(2030, 1, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))

    job = Job("email.send", {"to": "ada"}, idempotency_key="42", available_at=moment, priority=-2)

    assert (job.topic, job.payload, job.idempotency_key, job.priority) == ("email.send", {"to": "ada"}, "42", -2)
    assert job.available_at == moment
    assert job.available_at.tzinfo is UTC
    assert job.created is None
    assert inspect(job).transient


def test_enumerations_are_taken_by_their_values() -> None:
    job = Job(Topic.SEND, idempotency_key=Topic.SEND, priority=Level.HIGH)

    assert [type(value) for value in (job.topic, job.idempotency_key, job.priority)] == [str, str, int]
    assert (job.topic, job.idempotency_key, job.priority) == ("email.send", "email.send", 2)


@given(topics)
def test_every_topic_of_the_grammar_is_taken(topic: str) -> None:
    assert Job(topic).topic == topic


@given(st.text())
def test_a_topic_is_taken_if_and_only_if_it_follows_the_grammar(topic: str) -> None:
    grammar = set("abcdefghijklmnopqrstuvwxyz0123456789.-_")
    follows = 0 < len(topic) <= 255 and set(topic) <= grammar and topic[0] not in ".-_"
    try:
        assert Job(topic).topic == topic
    except InvalidJob:
        assert not follows
    else:
        assert follows


BAD_TOPICS: list[Any] = [
    "",
    "a'b",
    'a"b',
    "x'; DROP TABLE job; --",
    "%s %(x)s :p {0}",
    "ünï",
    "UPPER",
    "a b",
    "a\n",
    ".a",
    "-a",
    "_a",
    "x" * 10_000,
    None,
    5,
    b"bytes",
    ["t"],
    object(),
    10**5_000,
]


@pytest.mark.parametrize("topic", BAD_TOPICS, ids=range(len(BAD_TOPICS)))
def test_a_bad_topic_is_refused_in_a_short_line(topic: Any) -> None:
    with pytest.raises(InvalidJob, match=r"topic .* is refused: 1 to 255 characters of a-z 0-9 \. - _ ,") as caught:
        Job(topic)

    assert isinstance(caught.value, ValueError | BrooqError)
    assert len(str(caught.value)) < 300
    assert "10000 characters" in str(caught.value) or topic != "x" * 10_000


@pytest.mark.parametrize("key", ["k\x00", "\ud800", "k" * 256, 5, b"k", object(), 10**5_000], ids=range(7))
def test_a_bad_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidJob, match=r"idempotency_key .*(is refused|at most 255 are taken)"):
        Job("t", idempotency_key=key)


@pytest.mark.parametrize(
    ("given", "kept"), [(None, None), ("", None), (" ", " "), ("ü" * 255, "ü" * 255), ("'%s", "'%s")]
)
def test_a_key_is_kept_and_the_empty_one_is_none(given: str | None, kept: str | None) -> None:
    assert Job("t", idempotency_key=given).idempotency_key == kept


@pytest.mark.parametrize("priority", [3, -3, True, 1.0, "1", None, 10**5_000], ids=range(7))
def test_a_bad_priority_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidJob, match=r"priority .* is refused: a whole number from -2 to 2"):
        Job("t", priority=priority)


class Lost(tzinfo):
    """
    A time zone that doesn't know its offset.
    """

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


class Broken(Lost):
    """
    A time zone that answers with what is no offset.
    """

    def utcoffset(self, _: datetime | None) -> None:
        return cast(None, 5)


class Odd(Lost):
    """
    A time zone that raises.
    """

    def utcoffset(self, _: datetime | None) -> None:
        raise ValueError("no such place")


@pytest.mark.parametrize(
    ("moment", "fault"),
    [
        (datetime(2030, 1, 1), "is naive: give it a time zone"),  # noqa: DTZ001 - what is refused
        (datetime(2030, 1, 1, tzinfo=Lost()), "is naive"),
        (datetime(2030, 1, 1, tzinfo=Broken()), "is refused: its time zone tells no offset but raised TypeError"),
        (datetime(2030, 1, 1, tzinfo=Odd()), "is refused: its time zone tells no offset but raised ValueError"),
        (date(2030, 1, 1), "a datetime with a time zone"),
        ("2030-01-01", "a datetime with a time zone"),
        (0, "a datetime with a time zone"),
        (datetime.max.replace(tzinfo=UTC), "the years 2 to 9998 are taken"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "the years 2 to 9998 are taken"),
    ],
)
def test_a_bad_moment_is_refused(moment: Any, fault: str) -> None:
    with pytest.raises(InvalidJob, match=f"available_at .*{fault}"):
        Job("t", available_at=moment)


@pytest.mark.parametrize(
    ("delay", "fault"),
    [
        (5, "has no unit"),
        (True, "is not a duration"),
        ("soon", "is not a duration"),
        ("-5s", "is negative"),
        (timedelta(seconds=-1), "is negative"),
        (timedelta.max, "at most 36500 days are taken"),
        ("36501d", "at most 36500 days are taken"),
    ],
)
def test_a_bad_delay_is_refused(delay: Any, fault: str) -> None:
    with pytest.raises(InvalidJob, match=f"delay .*{fault}"):
        Job("t", delay=delay)


def test_a_moment_and_a_delay_exclude_each_other() -> None:
    with pytest.raises(InvalidJob, match="exclude each other: give one of them"):
        Job("t", available_at=datetime.now(UTC), delay="1s")


def test_the_outermost_values_can_be_stored_and_read_anywhere(engine: Engine, session: Session) -> None:
    first = datetime(2, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    last = datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-12)))
    for zone in ("Etc/GMT+12", "Etc/GMT-14"):
        session.connection().exec_driver_sql(f"SET TIME ZONE '{zone}'")
        given = [Job("t", available_at=first), Job("t", available_at=last), Job("t", delay=MAX_DELAY)]
        session.add_all(given)
        session.flush()
        session.expire_all()
        assert [job.available_at for job in given[:2]] == [first, last]
        assert given[2].available_at - given[2].created_at == MAX_DELAY


def test_names_at_their_limits_are_stored_as_they_are(engine: Engine, session: Session) -> None:
    topic, key = "a" * 255, "\U0001f600" * 255
    brooq.enqueue(session, Job(topic, idempotency_key=key))
    session.commit()

    assert [(one.topic, one.idempotency_key) for one in jobs(engine)] == [(topic, key)]


def test_an_unknown_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        Job("t", retries=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Job("t", {}, "key")  # type: ignore[call-arg]
