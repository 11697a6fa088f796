"""
What a consumer's test asserts of the jobs that it enqueued, and what it is told when that isn't so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sqlalchemy_brooq import Job, cancel
from sqlalchemy_brooq.testing import (
    aassert_enqueued,
    aassert_not_enqueued,
    aenqueued,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
)


def told(assertion: Callable[[], object]) -> list[str]:
    """
    Return the lines of the failure of *assertion*.
    """
    with pytest.raises(AssertionError) as failed:
        assertion()
    return str(failed.value).splitlines()


def test_enqueued_are_those_that_the_transaction_sees_in_their_order(session: Session) -> None:
    first, second, third = Job("b"), Job("a"), Job("b", {"n": 3})
    session.add_all([first, second])
    session.flush()
    session.add(third)

    assert enqueued(session) == [first, second, third]
    assert enqueued(session, "b") == [first, third]
    cancel(session, first.id)
    assert [job.state for job in enqueued(session)] == ["canceled", "pending", "pending"]


def test_a_bare_connection_sees_them_too_and_keeps_its_transaction(engine: Engine) -> None:
    with engine.connect() as connection, connection.begin():
        with Session(connection, join_transaction_mode="create_savepoint") as session, session.begin():
            session.add(Job("t", {"n": 1}))
        (job,) = enqueued(connection)
        assert (job.topic, job.payload, job.state) == ("t", {"n": 1}, "pending")
        assert assert_enqueued(connection, "t").id == job.id
        assert connection.in_transaction()
        assert len(enqueued(connection)) == 1


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (ANY, ANY),
        ({"to": "ada", "items": [1, 2]}, ANY),
        ({"to": ANY, "items": [1, ANY]}, "k"),
        ({"to": "ada", "items": (1, 2)}, "k"),
    ],
)
def test_a_job_is_found_by_what_is_asked_of_it(session: Session, payload: Any, key: Any) -> None:
    session.add(Job("mail", {"to": "bob"}, idempotency_key="other"))
    job = Job("mail", {"to": "ada", "items": [1, 2]}, idempotency_key="k")
    session.add(job)

    found = assert_enqueued(session, "mail", payload, key)

    assert found is job or payload is ANY
    with pytest.raises(AssertionError):
        assert_not_enqueued(session, "mail", payload=payload, key=key)


def test_no_key_is_a_key_to_ask_for(session: Session) -> None:
    session.add(Job("mail", idempotency_key="k"))

    assert_not_enqueued(session, "mail", key=None)
    with pytest.raises(AssertionError, match="no job was enqueued of topic 'mail' with key None"):
        assert_enqueued(session, "mail", key=None)


def test_a_failure_shows_what_was_enqueued_instead_the_same_topic_first(session: Session) -> None:
    session.add_all([Job("order", [1]), Job("mail", {"to": "bob"}, idempotency_key="k"), Job("mail", "x" * 500)])

    lines = told(lambda: assert_enqueued(session, "mail", {"to": "ada"}, key="k"))

    assert lines[0] == "no job was enqueued of topic 'mail' with payload {'to': 'ada'} with key 'k'"
    assert lines[1:3] == ["enqueued were:", "  mail  {'to': 'bob'}  key 'k'  pending"]
    assert lines[3].startswith("  mail  'xxx")
    assert len(lines[3]) < 250
    assert lines[4:] == ["  order  [1]  pending"]


def test_a_failure_says_so_where_nothing_was_enqueued(session: Session) -> None:
    assert told(lambda: assert_enqueued(session, "mail")) == [
        "no job was enqueued of topic 'mail'",
        "nothing was enqueued at all",
    ]


def test_a_failure_shows_no_more_than_one_can_read(session: Session) -> None:
    session.add_all([Job("t", n) for n in range(100)])

    lines = told(lambda: assert_enqueued(session, "mail"))

    assert len(lines) == 23
    assert lines[-1] == "  and 80 more"


def test_a_number_of_jobs_can_be_asked_for(session: Session) -> None:
    session.add_all([Job("mail", 1), Job("mail", 2)])

    assert assert_enqueued(session, "mail", count=2).payload == 1
    assert assert_enqueued(session, "mail", 2, count=1).payload == 2
    assert told(lambda: assert_enqueued(session, "mail", count=1))[0] == (
        "2, not 1, jobs were enqueued of topic 'mail'"
    )
    with pytest.raises(ValueError, match="count is 0: 1 or more, or use assert_not_enqueued"):
        assert_enqueued(session, "mail", count=0)


def test_what_should_not_be_there_is_shown(session: Session) -> None:
    session.add_all([Job("mail", 1), Job("mail", 2), Job("order")])

    assert_not_enqueued(session, "mail", 3)
    assert told(lambda: assert_not_enqueued(session, "mail", 2)) == [
        "there is a job of topic 'mail' with payload 2",
        "  mail  2  pending",
    ]


def test_async_sessions_are_asked_likewise(async_engine_url: URL) -> None:
    engine = create_async_engine(async_engine_url)

    async def main() -> None:
        async with AsyncSession(engine) as session:
            session.add(Job("mail", {"to": "ada"}, idempotency_key="k"))
            (job,) = await aenqueued(session)
            assert await aassert_enqueued(session, "mail", {"to": "ada"}, key="k", count=1) is job
            await aassert_not_enqueued(session, "order")
            assert await aenqueued(session, "order") == []
            with pytest.raises(AssertionError, match="enqueued were:\n  mail"):
                await aassert_enqueued(session, "order")
        await engine.dispose()

    asyncio.run(main())
