"""
Names and values that would be trouble as SQL: refused by a rule before any is sent, or stored exactly as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import URL, Engine, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Enqueued, InvalidJob, Job, PayloadError, RegistrationError
from tests.doors import SESSION_DOORS, Door
from tests.queues import MakeQueue
from tests.recording import jobs

T = TypeVar("T")

DRIVERS = ["psycopg", "psycopg2", "psycopg_async", "asyncpg"]

#: What drivers, COPY, arrays, LIKE, JSON and string formatting give a meaning to.
TEXTS = {
    "quote": "a'b",
    "double quote": 'a"b',
    "injection": "x'; DROP TABLE job; --",
    "percent": "100% %s %(x)s %% %",
    "placeholder": ":p $1 ? {0} {name}",
    "backslash": '\\ \\n \\N \\. \\u0000 \\"',
    "array": "{a,b,NULL}",
    "null": "NULL",
    "white space": " \t\r\n\v\x1f\x7f\xa0\u2028 ",
    "umlauts": "ünï",
    "upper": "UPPER",
    "emoji": "\U0001f600\u200d\U0001f525",
    "decomposed": "e\u0301",
    "right to left": "\u202eabc",
    "dollar": "$$ $tag$ body $tag$",
    "comment": "/* -- */",
}
LONG = "x" * 10_000
BROKEN = {"nul": "a\x00b", "lone surrogate": "a\ud800"}


def through(driver: str, url: URL, work: Callable[[Session], T]) -> tuple[T, list[str]]:
    """
    Run *work* in a session on *driver* and commit; return its answer, and the statements that it sent.
    """
    url = url.set(drivername=f"postgresql+{driver}")
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    async def run() -> T:
        async_engine = create_async_engine(url)
        event.listen(async_engine.sync_engine, "before_cursor_execute", note)
        async with AsyncSession(async_engine) as session, session.begin():
            answer = await session.run_sync(work)
        await async_engine.dispose()
        return answer

    if driver in {"psycopg_async", "asyncpg"}:
        return asyncio.run(run()), statements
    engine = create_engine(url)
    event.listen(engine, "before_cursor_execute", note)
    with Session(engine) as session, session.begin():
        answer = work(session)
    engine.dispose()
    return answer, statements


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("door", SESSION_DOORS)
def test_a_key_and_a_payload_of_any_text_come_back_exactly(
    database_url: URL, engine: Engine, driver: str, door: Door
) -> None:
    payloads = [{name: value, value: [value, {value: LONG}]} for name, value in TEXTS.items()]

    def work(session: Session) -> list[Enqueued]:
        given = [Job("t", payload, idempotency_key=key) for key, payload in zip(TEXTS.values(), payloads, strict=True)]
        answers = [door(session, job) for job in given]
        again = brooq.enqueue_many(session, [Job("t", idempotency_key=key) for key in TEXTS.values()])
        assert again == [(answer.id, False) for answer in answers]
        session.expire_all()
        for answer, payload, key in zip(answers, payloads, TEXTS.values(), strict=True):
            found = session.execute(select(Job.payload, Job.idempotency_key).where(Job.id == answer.id)).one()
            assert (found.payload, found.idempotency_key) == (payload, key)
        return answers

    answers, _ = through(driver, database_url, work)

    assert [(one.id, one.idempotency_key, one.payload) for one in jobs(engine)] == [
        (answer.id, key, payload) for answer, key, payload in zip(answers, TEXTS.values(), payloads, strict=True)
    ]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_payload_of_any_text_comes_back_exactly_from_a_bulk(database_url: URL, engine: Engine, driver: str) -> None:
    payloads = [*TEXTS.values(), *TEXTS, *([value] for value in TEXTS.values()), LONG, TEXTS] * 3

    through(driver, database_url, lambda session: brooq.enqueue_many(session, [Job("t", one) for one in payloads]))

    assert [one.payload for one in jobs(engine)] == payloads


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("door", SESSION_DOORS)
def test_what_breaks_a_rule_is_refused_before_any_sql(database_url: URL, driver: str, door: Door) -> None:
    def assigned(name: str, value: Any) -> Job:
        job = Job("t", {})
        setattr(job, name, value)
        return job

    def changed(value: Any) -> Job:
        job = Job("t", [])
        job.payload.append(value)
        return job

    topics = ["", LONG, "a\n", "a:b", "a/b", *BROKEN.values(), *TEXTS.values()]
    refused: list[tuple[Callable[[Any], Job], Any]] = [
        *((build, value) for value in topics for build in (Job, lambda value: assigned("topic", value))),
        *(
            (build, value)
            for value in (LONG, *BROKEN.values())
            for build in (lambda key: Job("t", idempotency_key=key), lambda key: assigned("idempotency_key", key))
        ),
        *(
            (build, value)
            for value in BROKEN.values()
            for build in (lambda value: Job("t", {value: 1}), lambda value: assigned("payload", value), changed)
        ),
    ]

    def work(session: Session) -> None:
        session.connection()
        for build, value in refused:
            with pytest.raises(InvalidJob) as caught:
                door(session, build(value))
            assert len(str(caught.value)) < 400

    _, statements = through(driver, database_url, work)

    assert statements == []


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("door", [brooq.cancel, brooq.replay])
def test_an_id_that_is_none_is_refused_before_any_sql(
    database_url: URL, driver: str, door: Callable[[Session, Any], Any]
) -> None:
    def work(session: Session) -> None:
        for value in [*TEXTS.values(), *BROKEN.values(), LONG, "", None, 5, b"x" * 16]:
            with pytest.raises(InvalidJob, match=r"job id .* is refused: a UUID, or its text") as caught:
                door(session, value)
            assert len(str(caught.value)) < 300

    _, statements = through(driver, database_url, work)

    assert statements == []


def test_a_topic_is_refused_alike_by_a_queue(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    for value in [*TEXTS.values(), *BROKEN.values(), LONG, ""]:
        with pytest.raises((InvalidJob, RegistrationError), match=r"topic .* is refused"):
            queue.register(value, lambda claim: None)
        with pytest.raises(InvalidJob, match=r"topic .* is refused"):
            queue.enqueue(Job(value))

    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job")) == 0


def test_the_queues_own_door_refuses_before_any_sql_too(engine: Engine, make_queue: MakeQueue) -> None:
    queue, statements = make_queue(engine), []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    for first in (True, False):
        bad = Job("t", [])
        bad.payload.append("\x00")
        with pytest.raises(PayloadError):
            queue.enqueue(bad)
        assert statements == []
        if first:
            queue.enqueue(Job("t"))
            statements.clear()
