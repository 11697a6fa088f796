"""
Looking for jobs in a large table: pages that lose none, what a question means, and cursors.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sqlalchemy_brooq import search
from sqlalchemy_brooq.browse import TooSlow
from sqlalchemy_brooq.search import InvalidQuery, JobQuery
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState
from tests.catalogs import run_sql
from tests.queues import on
from tests.test_browse import SECONDS, put

DEAD = frozenset({JobState.DEAD})
HOUR = timedelta(hours=1)


def page(engine: Engine, query: JobQuery, limit: int = 1_000, **options: Any) -> search.JobPage:
    return search.page(on(engine), query, limit=limit, budget=SECONDS, **options)


def topics(engine: Engine, query: JobQuery) -> str:
    return "".join(sorted(job.topic for job in page(engine, query).jobs))


# -- pages


@pytest.mark.parametrize("query", [JobQuery(), JobQuery(states=TERMINAL)], ids=["by id", "by end"])
def test_pages_lose_no_job_and_repeat_none_whatever_happens_meanwhile(engine: Engine, query: JobQuery) -> None:
    # Many ended at the same moment, and some at one that only plain SQL writes.
    ids = {
        *put(engine, "done", count=20),
        *put(engine, "dead", count=20),
        *(one for end in ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC") for one in ended_at(engine, end)),
    }
    query = JobQuery(query.topics, query.states, ended_since=timedelta(days=36_500) if query.states else None)
    seen = []
    cursor = None
    while True:
        found = page(engine, query, limit=7, after=cursor)
        seen += [job.id for job in found.jobs]
        cursor = found.next
        if cursor is None:
            break
        put(engine, "done", count=3, updated_at="now()")
        run_sql(engine, f"UPDATE job SET updated_at = now() WHERE state = 'pending' AND id <> '{seen[0]}'")

    assert len(seen) == len(set(seen))
    missing = ids - set(seen)
    assert missing == (set(ended_ids(engine, "updated_at < now() - interval '40000 days'")) if query.states else set())


def ended_at(engine: Engine, moment: str) -> list[Any]:
    return put(engine, "done", count=3, updated_at=f"'{moment}'")


def ended_ids(engine: Engine, condition: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.scalars(text(f"SELECT id FROM job WHERE {condition}")))


def test_a_row_that_retention_deletes_takes_no_page_with_it(engine: Engine) -> None:
    ids = put(engine, "done", count=10)
    first = page(engine, JobQuery(states=TERMINAL), limit=4)
    run_sql(engine, f"DELETE FROM job WHERE id = '{first.jobs[-1].id}'")

    rest = page(engine, JobQuery(states=TERMINAL), after=first.next)

    assert {*ids} == {job.id for job in (*first.jobs, *rest.jobs)}


def test_durations_count_from_the_first_page(engine: Engine) -> None:
    put(engine, "done", count=4, updated_at="now() - interval '59 min 59.9 s'")
    query = JobQuery(ended_since=HOUR)
    first = page(engine, query, limit=2)
    run_sql(engine, "SELECT pg_sleep(0.2)")

    assert len(page(engine, query, after=first.next).jobs) == 2
    assert page(engine, query).jobs == []


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "é", "W10", "====", "\x00", "bnVsbA", "WzEsMiwzXQ", "W1tbW1tb", "9" * 10_000]
    + [
        base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
        for parts in ([0, "2026-12-01T00:00:00Z", "x"], [0, "2026-12-01", "0" * 32], [0, 1, 2, 3, 4], {"a": 1}, "abc")
    ],
)
def test_what_is_no_cursor_is_refused_before_any_sql(cursor: str) -> None:
    with pytest.raises(InvalidQuery, match="this is no cursor: take the one"):
        search.page(lambda: pytest.fail("asked"), JobQuery(), after=cursor, limit=1, budget=SECONDS)


@pytest.mark.parametrize("end", ["9999-99-99T00:00:00+00:00", "2026-12-01T00:00:00", "now", "x'; --", "1" * 30])
def test_a_forged_end_in_a_cursor_is_refused(engine: Engine, end: str) -> None:
    put(engine, "done", count=2)
    query = JobQuery(states=TERMINAL)
    cursor = page(engine, query, limit=1).next
    assert cursor is not None
    parts = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    forged = base64.urlsafe_b64encode(json.dumps([*parts[:3], end]).encode()).decode()

    if end == "2026-12-01T00:00:00":  # a moment of the session's time zone: it harms nobody
        page(engine, query, after=forged)
    else:
        with pytest.raises(InvalidQuery, match="this is no cursor"):
            page(engine, query, after=forged)


def test_a_cursor_of_another_question_is_refused(engine: Engine) -> None:
    put(engine, "done", count=2)
    cursor = page(engine, JobQuery(), limit=1).next

    for other in (JobQuery(topics=("t",)), JobQuery(key="k"), JobQuery(states=frozenset({JobState.PENDING}))):
        with pytest.raises(InvalidQuery, match="leads on from another question"):
            page(engine, other, after=cursor)


def test_the_order_of_states_is_no_part_of_a_question(engine: Engine) -> None:
    put(engine, "done", count=2)
    cursor = page(engine, JobQuery(states=frozenset(map(JobState, ["done", "dead", "canceled"]))), limit=1).next

    assert len(page(engine, JobQuery(states=TERMINAL), after=cursor).jobs) == 1


# -- questions


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (JobQuery(), "abcdef"),
        (JobQuery(topics=("a", "d")), "ad"),
        (JobQuery(states=DEAD), "d"),
        (JobQuery(states=DEAD | {JobState.PENDING, JobState.PROCESSING}), "abd"),
        (JobQuery(key="k"), "e"),
        (JobQuery(topics=("a",), key="k"), ""),
        (JobQuery(created_since=timedelta(hours=2)), "acde"),
        (JobQuery(created_until=timedelta(hours=2)), "bf"),
        (JobQuery(created_since=datetime(2020, 1, 1, tzinfo=UTC), created_until=timedelta(hours=2)), "bf"),
        (JobQuery(ended_since=timedelta(minutes=20)), "d"),
        (JobQuery(ended_until=timedelta(minutes=20)), "e"),
        (JobQuery(ended_since=timedelta(days=3)), "def"),
        (JobQuery(payload=(("customer.id", "42"),)), "bc"),
        (JobQuery(payload=(("customer.id", "42"), ("n.1", "x"))), "c"),
        (JobQuery(payload=(("gone", "true"),)), "a"),
        (JobQuery(payload=(("gone", "null"),)), ""),
        (JobQuery(payload=(("customer.'; --", "42"),)), ""),
    ],
)
def test_a_question_finds_what_it_says(engine: Engine, query: JobQuery, found: str) -> None:
    put(engine, "pending", topic="a", payload="'{\"gone\": true}'")
    put(engine, "processing", topic="b", created_at="now() - interval '3 h'", payload='\'{"customer": {"id": 42}}\'')
    put(engine, "failed", topic="c", payload='\'{"customer": {"id": "42"}, "n": [1, "x"]}\'')
    put(engine, "dead", topic="d")
    put(engine, "done", topic="e", idempotency_key="'k'", updated_at="now() - interval '30 min'")
    put(engine, "canceled", topic="f", updated_at="now() - interval '2 days'", created_at="now() - interval '3 days'")
    # What is over is looked for within a day, unless it is said otherwise, or nothing has to be walked through.
    old = "" if query.period is not None and query.period == search.DAY else "f"

    assert topics(engine, query) == found.replace("f", old)
    counted = search.count(on(engine), query, limit=100, budget=SECONDS)
    assert sum(counted.values()) == len(found.replace("f", old))
    assert len(search.chosen(on(engine), query, limit=100, budget=SECONDS)) == sum(counted.values())


def test_a_page_says_how_far_back_it_looked(engine: Engine) -> None:
    assert page(engine, JobQuery()).period is None
    assert page(engine, JobQuery(key="k")).period is None
    assert page(engine, JobQuery(states=frozenset({JobState.PENDING}))).period is None
    assert page(engine, JobQuery(topics=("t",))).period == timedelta(days=1)
    assert page(engine, JobQuery(states=DEAD)).period == timedelta(days=1)
    assert page(engine, JobQuery(states=DEAD, ended_since=HOUR)).period == HOUR
    assert page(engine, JobQuery(created_since=HOUR)).period == HOUR


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topics": ("\x00",)}, "NUL"),
        ({"key": "\ud800"}, "not UTF-8"),
        ({"payload": (("a", "\x00"),)}, "NUL"),
        ({"payload": (("\ud800", ""),)}, "not UTF-8"),
        ({"payload": (("a..b", ""),)}, "names with dots between them"),
        ({"payload": (("", ""),)}, "names with dots between them"),
        ({"payload": ((".".join("a" * 33), ""),)}, "at most 16 paths of 32 names"),
        ({"payload": (("a", ""),) * 17}, "at most 16 paths of 32 names"),
        ({"states": {JobState.PENDING}, "ended_since": HOUR}, "jobs that are over: pending is not"),
    ],
)
def test_a_question_that_nothing_could_answer_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidQuery, match=reason):
        JobQuery(**fields)


def test_no_more_are_counted_than_is_said(engine: Engine) -> None:
    put(engine, "pending", count=20)
    put(engine, "dead", count=20)

    assert sum(search.count(on(engine), JobQuery(), limit=30, budget=SECONDS).values()) == 31
    assert len(search.chosen(on(engine), JobQuery(), limit=30, budget=SECONDS)) == 31


def test_what_takes_too_long_is_given_up(engine: Engine) -> None:
    soon = timedelta(milliseconds=50)
    with engine.begin() as other:
        other.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))

        with pytest.raises(TooSlow, match="finding these jobs took longer than 50ms, and was given up"):
            search.page(on(engine), JobQuery(), limit=1, budget=soon)
        with pytest.raises(TooSlow, match="counting these jobs took longer"):
            search.count(on(engine), JobQuery(), limit=1, budget=soon)
        with pytest.raises(TooSlow, match="finding what died"):
            search.died(on(engine), limit=1, budget=soon)


def test_what_runs_for_longest_and_what_died_last_come_first(engine: Engine) -> None:
    put(engine, "processing", topic="b")
    put(engine, "dead", topic="d")
    run_sql(engine, "UPDATE job SET claimed_at = now() - interval '1 h' WHERE topic = 'b'")
    put(engine, "processing", topic="a")
    put(engine, "dead", topic="c", updated_at="now()")
    put(engine, "dead", topic="e", updated_at="now() - interval '2 days'")

    in_flight = search.in_flight(on(engine), limit=5, budget=SECONDS)
    died = search.died(on(engine), limit=5, budget=SECONDS)

    assert [job.topic for job in in_flight] == ["b", "a"]
    assert [job.topic for job in died] == ["c", "d"]
