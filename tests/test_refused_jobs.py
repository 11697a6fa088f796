"""
What a door refuses: before any SQL, naming the value and the rule, and harming no transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import InvalidJob, Job, PayloadError
from tests.doors import SESSION_DOORS, Door, insert_probe, probes, with_probe
from tests.recording import jobs, recorded


@pytest.fixture
def probed(engine: Engine) -> Engine:
    return with_probe(engine)


REFUSED: list[Callable[[], Job]] = [
    lambda: Job("t", {"a": "x\x00y"}),
    lambda: Job("t", {"k\x00": 1}),
    lambda: Job("t", {"l": [{"z": "\x00"}]}),
    lambda: Job("t", float("nan")),
    lambda: Job("t", "\ud800"),
    lambda: Job("t\x00"),
    lambda: Job("t", idempotency_key="k\x00"),
    lambda: Job("t", {"when": datetime.now(UTC)}),  # built, because an engine's serializer might know it
    lambda: mutated(Job("t"), float("inf")),
    lambda: mutated(Job("t"), "\x00"),
]


def mutated(job: Job, value: Any) -> Job:
    job.payload["late"] = value
    return job


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_what_is_refused_sends_no_sql_and_leaves_the_transaction_usable(
    probed: Engine, session: Session, door: Door
) -> None:
    insert_probe(session, 1)

    for build in REFUSED:
        with recorded(probed) as statements, pytest.raises(InvalidJob):
            door(session, build())
        assert statements == []
    answer = door(session, Job("t", {"a": "\\u0000 literal"}))
    insert_probe(session, 2)
    session.commit()

    assert probes(probed) == {1, 2}
    assert [(one.id, one.payload) for one in jobs(probed)] == [(answer.id, {"a": "\\u0000 literal"})]


@pytest.mark.parametrize("door", SESSION_DOORS)
def test_a_refusal_says_whether_it_is_about_the_payload_or_the_meta(session: Session, door: Door) -> None:
    with pytest.raises(PayloadError, match=r"^the payload is not JSON"):
        door(session, mutated(Job("t"), object()))
    job = Job("t")
    job.meta = {"note": "\x00"}
    with pytest.raises(PayloadError, match=r"^the meta has a string with a NUL"):
        door(session, job)


def test_one_refused_of_many_leaves_nothing_behind(engine: Engine, session: Session) -> None:
    with recorded(engine) as statements, pytest.raises(PayloadError):
        brooq.enqueue_many(session, (Job("t") if n < 3_000 else mutated(Job("t"), "\x00") for n in range(3_001)))

    assert statements == []
    session.commit()
    assert jobs(engine) == []


def test_the_engines_serializer_decides_about_foreign_types(database_url: URL) -> None:
    def dumps(value: Any) -> str:
        return json.dumps(value, default=datetime.isoformat)

    engine = create_engine(database_url, json_serializer=dumps)
    moment = datetime(2030, 5, 17, tzinfo=UTC)
    with Session(engine) as session, session.begin():
        brooq.enqueue(session, Job("t", {"when": moment}))
        session.add(Job("t", {"when": moment}))
        brooq.enqueue_many(session, [Job("t", {"when": moment})])
        with pytest.raises(PayloadError, match="the payload is not JSON: "):
            brooq.enqueue(session, Job("t", {"what": object()}))

    assert [one.payload for one in jobs(engine)] == [{"when": "2030-05-17T00:00:00+00:00"}] * 3
    engine.dispose()


@pytest.mark.parametrize(
    ("dumps", "fault"),
    [
        (lambda value: json.dumps(value).encode(), "returned bytes"),
        (lambda _: "{", "didn't write JSON"),
        (lambda _: "NaN", "NaN is no JSON value"),
        (lambda _: "1e999", "beyond a double"),
        (lambda _: "[" * 100_000, "nested too deeply"),
        (lambda _: '"\\u0000"', "NUL"),
        (lambda _: '"\\ud83d"', "lone surrogate"),
        (lambda value: value["missing"], "refused the payload: 'missing'"),
    ],
)
def test_a_serializer_that_writes_what_jsonb_refuses_is_found_out(
    database_url: URL, dumps: Callable[[Any], Any], fault: str
) -> None:
    engine = create_engine(database_url, json_serializer=dumps)
    with Session(engine) as session, session.begin():
        session.execute(text("SELECT 1"))
        with pytest.raises(PayloadError, match=fault):
            brooq.enqueue(session, Job("t"))
        session.execute(text("SELECT 1"))
    engine.dispose()


@pytest.mark.parametrize("door", [brooq.enqueue, brooq.enqueue_many, brooq.cancel, brooq.replay])
def test_a_door_says_what_it_takes(engine: Engine, session: Session, door: Callable[..., Any]) -> None:
    takes = rf"^{door.__name__}\(\) takes a Session, scoped_session or Connection, not "
    with pytest.raises(TypeError, match=rf"{takes}Engine: open a Session on it, or use Queue.begin\(\)$"):
        door(engine, Job("t"))
    with pytest.raises(TypeError, match=rf"{takes}NoneType$"):
        door(None, Job("t"))
    if door in {brooq.enqueue, brooq.enqueue_many}:
        with pytest.raises(TypeError, match=r"takes .*Job objects, not "):
            door(session, {"topic": "t"})
    if door is brooq.enqueue_many:
        with pytest.raises(TypeError, match="takes an iterable of Job objects, not a Job"):
            door(session, Job("t"))
        with pytest.raises(TypeError, match="not a int"):
            door(session, 5)
