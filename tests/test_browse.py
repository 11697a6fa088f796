"""
Looking at jobs: pages that lose none, filters, what is known of a job, counts by topic, and what all that reads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, Select, func, select, text

from sqlalchemy_brooq import browse
from sqlalchemy_brooq.browse import Filter, JobView, TooSlow, TopicStats
from sqlalchemy_brooq.operations import CANCELABLE
from sqlalchemy_brooq.statements import browsing, operating
from sqlalchemy_brooq.vocabulary import JobState
from sqlalchemy_brooq.worker.connection import short_transaction
from tests.catalogs import run_sql
from tests.test_docs import script

SECONDS = timedelta(seconds=30)

#: Columns of a job as workers leave it, by its state; each state was entered ten minutes ago.
LEFT = {
    "pending": "0, NULL, NULL, NULL",
    "processing": "1, now() - interval '10 min', 'w1', now() + interval '1 min'",
    "failed": "1, now() - interval '11 min', NULL, NULL",
    "done": "1, now() - interval '12 min', 'w1', now()",
    "dead": "5, now() - interval '12 min', 'w1', now()",
    "canceled": "0, NULL, NULL, NULL",
}


def put(engine: Engine, state: str, *, count: int = 1, topic: str = "t", **columns: str) -> list[UUID]:
    """
    Store jobs as workers leave them; *columns* are SQL.
    """
    given = {"updated_at": "now() - interval '10 min'", "created_at": "now() - interval '1 h'", **columns}
    given.setdefault("available_at", "now() - interval '15 min'")
    insert = (
        f"INSERT INTO job (topic, state, attempts, claimed_at, locked_by, locked_until, {', '.join(given)})"
        f" SELECT '{topic}', '{state}', {LEFT[state]}, {', '.join(given.values())} FROM generate_series(1, {count})"
        " RETURNING id"
    )
    with engine.begin() as connection:
        return list(connection.scalars(text(insert)))


def in_short(engine: Engine) -> Callable[[], AbstractContextManager[Connection]]:
    return partial(short_transaction, engine)


def listed(engine: Engine, wanted: Filter, limit: int = 1_000_000, **options: Any) -> list[JobView]:
    return list(browse.jobs(in_short(engine), wanted, limit=limit, budget=SECONDS, **options))


def seen(engine: Engine, job_id: UUID, **options: Any) -> JobView:
    with engine.connect() as connection:
        return browse.job(connection, job_id, **options)


def counted(engine: Engine, *topics: str) -> list[TopicStats]:
    return browse.stats(in_short(engine), topics, budget=SECONDS)


# -- pages


def test_pages_lose_no_job_and_repeat_none_whatever_happens_meanwhile(engine: Engine) -> None:
    ids = {*put(engine, "pending", count=40), *put(engine, "done", count=40)}
    pages: list[UUID] = []
    after = None
    while page := listed(engine, Filter(), limit=7, after=after):
        pages += (job.id for job in page)
        after = pages[-1]
        put(engine, "pending", count=3)
        run_sql(engine, "UPDATE job SET state = 'canceled', updated_at = now() WHERE state = 'pending'")

    assert len(pages) == len(set(pages))
    assert ids <= set(pages)


def test_many_pages_are_read_as_one_list(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "PAGE", 10)
    ids = put(engine, "pending", count=35)

    assert [job.id for job in listed(engine, Filter())] == sorted(ids, reverse=True)
    assert len(listed(engine, Filter(), limit=23)) == 23
    assert len(listed(engine, Filter(), limit=20)) == 20


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), "abcdef"),
        (Filter(topics=("a", "b")), "ab"),
        (Filter(states=frozenset({JobState.DEAD, JobState.FAILED})), "cd"),
        (Filter(key="k"), "e"),
        (Filter(topics=("f",), key="k"), ""),
        (Filter(older_than=timedelta(hours=2)), "b"),
        (Filter(newer_than=timedelta(hours=2)), "acdef"),
        (Filter(older_than=timedelta(minutes=30), newer_than=timedelta(hours=2)), "acef"),
        (Filter(ended_within=timedelta(minutes=20)), "de"),
        (Filter(states=frozenset({JobState.DONE}), ended_within=timedelta(minutes=20)), "e"),
    ],
    # Not by the text of a filter, whose sets are in no order: all processes of a run must find the same tests.
    ids=["all", "topics", "states", "key", "key of another topic", "old", "new", "between", "ended", "ended and done"],
)
def test_a_filter_finds_what_it_says(engine: Engine, wanted: Filter, found: str) -> None:
    put(engine, "pending", topic="a")
    put(engine, "processing", topic="b", created_at="now() - interval '3 h'")
    put(engine, "failed", topic="c")
    put(engine, "dead", topic="d", created_at="now()")
    put(engine, "done", topic="e", idempotency_key="'k'")
    put(engine, "canceled", topic="f", updated_at="now() - interval '30 min'")

    assert "".join(sorted(job.topic for job in listed(engine, wanted))) == found


def test_rows_that_only_plain_sql_writes_are_shown(engine: Engine) -> None:
    for moment in ("'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'"):
        put(
            engine,
            "pending",
            available_at=moment,
            created_at=moment,
            updated_at=moment,
            meta="'[1]'",
            payload="'1e400'",
        )

    jobs = listed(engine, Filter(), private=("payload", "key"))
    assert len(jobs) == 4
    assert len({str(job.facts()) for job in jobs}) == 4
    assert seen(engine, jobs[0].id, pretty=True).chained_by is None
    (stats,) = counted(engine)
    assert (stats.ready, stats.scheduled) == (2, 2)
    assert stats.oldest_ready_seconds == timedelta(days=3_650_000).total_seconds()


def test_what_is_the_consumer_s_comes_only_where_it_is_asked_for(engine: Engine) -> None:
    (job_id,) = put(engine, "dead", idempotency_key="'secret-key'", last_error="'secret-error'", payload="'\"secret\"'")

    (plain,) = listed(engine, Filter())
    (full,) = listed(engine, Filter(), private=("key", "error", "payload"))

    assert "secret" not in str(plain)
    assert "secret-key" in str(full)
    assert full.private["error"] == "secret-error"
    assert full.private["payload"] == browse.RawJson('"secret"')
    assert "payload" not in seen(engine, job_id, payload=False).private


def test_a_list_that_takes_too_long_is_given_up(engine: Engine) -> None:
    with engine.begin() as other:
        other.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))

        with pytest.raises(TooSlow, match=r"took longer than 50ms, and was given up: ask for a state"):
            list(browse.jobs(in_short(engine), Filter(), limit=1, budget=timedelta(milliseconds=50)))


# -- one job


@pytest.mark.parametrize(
    ("state", "columns", "waited", "ran"),
    [
        ("pending", {}, 15, None),
        ("pending", {"available_at": "now() + interval '5 min'"}, None, None),
        ("processing", {}, 5, 10),
        ("failed", {}, 15, 1),
        ("done", {}, 3, 2),
        ("dead", {"available_at": "now() - interval '20 min'"}, 8, 2),
        ("canceled", {}, None, None),
    ],
)
def test_what_a_job_waited_and_ran_is_known_from_its_row(
    engine: Engine, state: str, columns: dict[str, Any], waited: int | None, ran: int | None
) -> None:
    (job_id,) = put(engine, state, **columns)

    job = seen(engine, job_id)

    assert (minutes(job.waited), minutes(job.ran)) == (waited, ran)


def minutes(duration: timedelta | None) -> int | None:
    return None if duration is None else round(duration / timedelta(minutes=1))


def test_a_job_tells_of_those_that_it_hangs_together_with(engine: Engine) -> None:
    (job_id,) = put(engine, "dead", meta='\'{"chained_by": "one", "replays": "two"}\'')
    assert seen(engine, job_id).replayed_by is None
    (replay_id,) = put(engine, "pending", idempotency_key=f"'replay:{job_id}'")
    put(engine, "done", topic="other", idempotency_key=f"'replay:{job_id}'")

    job = seen(engine, job_id)

    assert (job.chained_by, job.replays, job.replayed_by) == ("one", "two", (replay_id, "pending"))


# -- counts


def test_stats_count_each_topic(engine: Engine) -> None:
    put(engine, "pending", topic="a", count=3)
    put(engine, "pending", topic="a", count=2, available_at="now() + interval '1 h'")
    put(engine, "failed", topic="a", available_at="now() - interval '20 min'")
    put(engine, "processing", topic="b", count=4)
    put(engine, "done", topic="b", count=5)
    put(engine, "done", topic="b", count=6, updated_at="now() - interval '2 h'")
    put(engine, "dead", topic="b", count=7, updated_at="now() - interval '2 h'")
    put(engine, "canceled", topic="c")

    a, b, c = counted(engine)

    assert a.oldest_ready_seconds == pytest.approx(1_200, abs=60)
    a.oldest_ready_seconds = None
    nothing = {"done": 0, "dead": 0, "canceled": 0}
    assert a == TopicStats("a", ready=4, scheduled=2, failed=1, last_hour=nothing)
    assert b == TopicStats("b", in_flight=4, dead=7, last_hour={**nothing, "done": 5})
    assert c == TopicStats("c", last_hour={**nothing, "canceled": 1})
    assert [one.topic for one in counted(engine, "c", "a", "nowhere")] == ["a", "c"]


def test_a_count_that_takes_too_long_is_unknown_and_spoils_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "dead")
    monkeypatch.setattr(browsing, "dead", lambda _wanted: select(func.pg_sleep(60)))

    (stats,) = browse.stats(in_short(engine), budget=timedelta(milliseconds=500))

    assert stats.dead is None
    assert stats.ready == 0
    assert stats.last_hour == {"done": 0, "dead": 1, "canceled": 0}


# -- plans


def test_what_is_asked_of_a_large_table_is_read_through_an_index(engine: Engine) -> None:
    plans = script("plans.py")
    some = {"limit": 20}
    with engine.begin() as connection:
        plans.fill(connection, 50_000)
        for statement, parameters, index in (
            (browsing.page(Filter()), some, "job_pkey"),
            (browsing.page(Filter(), after=UUID(int=1 << 127)), some, "job_pkey"),
            (browsing.page(Filter(states=frozenset({JobState.PROCESSING}))), some, "job_leased"),
            (browsing.page(Filter(("email.send",), key="key-10")), some, "job_idempotency"),
            (browsing.page(Filter(ended_within=timedelta(minutes=5))), {"limit": 5_000}, "job_terminal"),
            (operating.chosen(Filter(states=CANCELABLE)), {}, "job_leased"),
            (browsing.one(payload=True, pretty=False), {"job_id": UUID(int=5)}, "job_pkey"),
            (browsing.waiting(Filter()), {}, "job_ready"),
            (browsing.in_flight(Filter()), {}, "job_leased"),
            (browsing.ended(Filter()), {"period": timedelta(minutes=10)}, "job_terminal"),
        ):
            plan = planned(connection, statement, parameters)
            assert f" {index}" in plan, plan
            assert "Seq Scan on job" not in plan, plan


def planned(connection: Connection, statement: Select[Any], parameters: dict[str, Any]) -> str:
    """
    Return the plan with the parameters known: these statements are never prepared.
    """
    compiled = statement.compile(dialect=connection.dialect)
    explained = connection.exec_driver_sql(f"EXPLAIN {compiled}", compiled.construct_params(parameters))
    return "\n".join(explained.scalars())
