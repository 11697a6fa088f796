"""
Retention: what is old and ended goes, oldest first; everything else stays.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Engine, create_engine, text

from sqlalchemy_brooq.statements.retention import FIRST, candidates, purge, purge_one
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState
from sqlalchemy_brooq.worker.connection import PrivateConnection
from sqlalchemy_brooq.worker.retention import Retention, RetentionStore, lifetimes
from tests.queues import MakeQueue, on, quick, states
from tests.waiting import eventually

TTL = timedelta(days=30)


def old_jobs(engine: Engine, state: str, count: int, days: int = 60) -> list[UUID]:
    lease = "'w', now(), now()" if state == "processing" else "NULL, NULL, NULL"
    with engine.begin() as connection:
        rows = connection.execute(
            text(
                "INSERT INTO job (topic, state, updated_at, locked_by, locked_until, claimed_at)"
                f" SELECT 't', :state, now() - make_interval(days => :days, mins => n), {lease}"
                " FROM generate_series(1, :count) n RETURNING id"
            ),
            {"state": state, "days": days, "count": count},
        )
        return [id_ for (id_,) in rows][::-1]  # oldest first


def retention(engine: Engine, batch: int = 10, deleted: Counter[str] | None = None) -> Retention:
    counts = Counter[str]() if deleted is None else deleted

    def count(topic: str, number: int) -> None:
        counts[topic] += number

    return Retention([RetentionStore(on(engine), TERMINAL, TTL, batch)], count, 60.0)


def test_old_terminal_rows_go_and_active_ones_stay_however_old(engine: Engine) -> None:
    for state in JobState:
        old_jobs(engine, state, 25, days=700)
    deleted: Counter[str] = Counter()

    retention(engine, deleted=deleted).round()

    assert states(engine) == {"pending": 25, "processing": 25, "failed": 25}
    assert deleted == {"t": 75}


def test_young_rows_stay(engine: Engine) -> None:
    old_jobs(engine, "done", 5, days=29)

    retention(engine).round()

    assert states(engine) == {"done": 5}


def test_one_row_that_a_foreign_key_holds_stops_nothing_else(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    ids = old_jobs(engine, "done", 50)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ref (job_id uuid CONSTRAINT ref_to_job REFERENCES job (id))"))
        connection.execute(text("INSERT INTO ref VALUES (:id)"), {"id": ids[0]})
    deleted: Counter[str] = Counter()
    sweeper = retention(engine, deleted=deleted)

    sweeper.round()

    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM job")).scalars().all() == [ids[0]]
    assert deleted == {"t": 49}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "ref_to_job" in warnings[0]
    assert str(ids[0]) in warnings[0]
    caplog.clear()
    sweeper.round()
    assert not caplog.records  # said once


def test_more_held_rows_than_any_batch_end_the_round_all_the_same(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    ids = old_jobs(engine, "done", 300)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ref (job_id uuid REFERENCES job (id))"))
        connection.execute(text("INSERT INTO ref SELECT unnest(CAST(:ids AS uuid[]))"), {"ids": ids[:250]})
    own = PrivateConnection(engine)

    sweeper = Retention(
        [RetentionStore(partial(own.transaction, limit=10.0), TERMINAL, TTL, 20)], lambda topic, count: None, 60.0
    )
    sweeper.round()
    sweeper.round()

    assert states(engine) == {"done": 250}
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    own.close()


def test_a_row_whose_reference_somebody_holds_is_left_soon(engine: Engine) -> None:
    ids = old_jobs(engine, "done", 5)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ref (job_id uuid REFERENCES job (id) ON DELETE CASCADE)"))
        connection.execute(text("INSERT INTO ref SELECT unnest(CAST(:ids AS uuid[]))"), {"ids": ids})

    with engine.begin() as consumer:
        consumer.execute(text("UPDATE ref SET job_id = job_id WHERE job_id = :id"), {"id": ids[2]})
        consumer.execute(text("SELECT 1 FROM ref WHERE job_id = :id FOR UPDATE"), {"id": ids[2]})
        retention(engine).round()
        with engine.connect() as connection:
            assert connection.execute(text("SELECT id FROM job")).scalars().all() == [ids[2]]


def test_a_whole_batch_of_held_rows_does_not_hide_the_others(engine: Engine) -> None:
    ids = old_jobs(engine, "done", 50)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ref (job_id uuid REFERENCES job (id))"))
        connection.execute(text("INSERT INTO ref SELECT unnest(CAST(:ids AS uuid[]))"), {"ids": ids[:25]})

    retention(engine, batch=10).round()

    with engine.connect() as connection:
        assert set(connection.execute(text("SELECT id FROM job")).scalars()) == set(ids[:25])


def test_a_row_that_somebody_holds_is_left_for_the_next_round(engine: Engine) -> None:
    ids = old_jobs(engine, "dead", 5)
    sweeper = retention(engine)

    with engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": ids[2]})
        sweeper.round()
    assert states(engine) == {"dead": 1}
    sweeper.round()

    assert states(engine) == {}


def test_the_oldest_go_first(engine: Engine) -> None:
    ids = old_jobs(engine, "canceled", 20)

    RetentionStore(on(engine), TERMINAL, TTL, 5).purge(FIRST)

    with engine.connect() as connection:
        assert set(connection.execute(text("SELECT id FROM job")).scalars()) == set(ids[5:])


def test_a_row_is_due_when_its_time_is_over_and_not_just_then(engine: Engine) -> None:
    old_jobs(engine, "done", 2)
    due = {"ttl": TTL, "batch": 10, **FIRST}

    with engine.begin() as connection:
        first, second = connection.execute(text("SELECT id FROM job ORDER BY id")).scalars()
        connection.execute(text("UPDATE job SET updated_at = now() - CAST(:ttl AS interval)"), due)
        assert connection.execute(purge(TERMINAL), due).all() == []
        assert connection.execute(purge_one(TERMINAL), {"ttl": TTL, "id": first}).all() == []

        connection.execute(text("UPDATE job SET updated_at = updated_at - interval '1 microsecond'"))
        assert connection.execute(purge_one([JobState.DEAD]), {"ttl": TTL, "id": first}).all() == []
        assert connection.execute(purge_one(TERMINAL), {"ttl": TTL, "id": first}).scalars().all() == ["t"]
        assert connection.execute(candidates(TERMINAL), due).scalars().all() == [second]


def test_a_batch_waits_for_no_row(engine: Engine) -> None:
    held, free = old_jobs(engine, "done", 2)
    due = {"ttl": TTL, "batch": 10, **FIRST}

    with engine.begin() as consumer, engine.connect() as connection:
        consumer.execute(text("UPDATE job SET topic = 'held' WHERE id = :id"), {"id": held})
        connection.execute(text("SET LOCAL lock_timeout = '10ms'"))
        assert connection.execute(purge_one(TERMINAL), {"ttl": TTL, "id": held}).all() == []
        assert connection.execute(purge(TERMINAL), due).scalars().all() == ["t"]
        assert connection.execute(text("SELECT id FROM job WHERE id = :id"), {"id": free}).all() == []


def test_a_batch_begins_behind_the_last_row_of_the_one_before(engine: Engine) -> None:
    old_jobs(engine, "done", 3)

    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET updated_at = now() - interval '60 days'"))
        rows = connection.execute(candidates(TERMINAL), {"ttl": TTL, "batch": 10, **FIRST}).all()
        after = {"after_at": rows[1].updated_at, "after_id": rows[1].id}
        assert connection.execute(candidates(TERMINAL), {"ttl": TTL, "batch": 10, **after}).all() == rows[2:]

    assert [one.id for one in rows] == sorted(one.id for one in rows)


@pytest.mark.parametrize(
    "plan",
    [
        "enable_indexscan=off -c enable_bitmapscan=off -c enable_indexonlyscan=off",
        "enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off",
        "enable_nestloop=off -c enable_material=off",
        "plan_cache_mode=force_generic_plan",
    ],
)
def test_a_batch_is_no_larger_than_it_says_under_any_plan(database_url: URL, engine: Engine, plan: str) -> None:
    ids = old_jobs(engine, "done", 60)
    planned = create_engine(database_url, connect_args={"options": f"-c {plan}"})

    assert len(RetentionStore(on(planned), TERMINAL, TTL, 7).purge(FIRST)) == 7

    planned.dispose()
    with engine.connect() as connection:
        assert set(connection.execute(text("SELECT id FROM job")).scalars()) == set(ids[7:])


def test_a_long_round_says_how_far_it_has_come_and_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seconds = itertools.count(step=5)

    class Endless:
        def purge(self, _: object) -> list[str]:
            return ["t"] * 10

    Retention([Endless()], lambda topic, count: None, 60.0, lambda: float(next(seconds))).round()  # type: ignore[list-item]

    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "retention: deleted 60 so far, and goes on"
    assert 10 <= len(said) <= 20
    assert said[-2:] == [
        "retention: more than 100 batches are due; the rest goes on in 60 s: QUEUE_RETENTION_BATCH makes it more",
        "retention: deleted 1000: t 1000",
    ]


@pytest.mark.parametrize("rule", ["SET NULL", "CASCADE"])
def test_a_reference_may_let_its_job_go(engine: Engine, rule: str) -> None:
    ids = old_jobs(engine, "done", 3)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE ref (job_id uuid REFERENCES job (id) ON DELETE {rule})"))
        connection.execute(text("INSERT INTO ref SELECT unnest(CAST(:ids AS uuid[]))"), {"ids": ids})

    retention(engine).round()

    with engine.connect() as connection:
        assert connection.execute(text("SELECT job_id FROM ref")).scalars().all() == (
            [None] * 3 if rule == "SET NULL" else []
        )
    assert states(engine) == {}


def test_states_with_one_lifetime_share_a_statement_and_zero_keeps_for_good() -> None:
    assert lifetimes(quick()) == {timedelta(days=30): TERMINAL}
    assert lifetimes(quick(retention_ttl="0")) == {}
    assert lifetimes(quick(retention_ttl="0", retention_ttl_dead="1d")) == {timedelta(days=1): {JobState.DEAD}}


def test_active_states_are_refused() -> None:
    with pytest.raises(ValueError, match="terminal rows only"):
        purge([JobState.FAILED])


def test_a_worker_deletes_what_is_due(engine: Engine, make_queue: MakeQueue) -> None:
    old_jobs(engine, "done", 30)
    old_jobs(engine, "dead", 30)
    registry = CollectorRegistry()
    queue = make_queue(engine, registry=registry, retention_ttl_dead="0")
    queue.start()

    eventually(lambda: states(engine) == {"dead": 30})
    eventually(lambda: registry.get_sample_value("brooq_retention_deleted_total", {"topic": "t"}) == 30)


def test_a_worker_that_keeps_everything_has_no_such_loop(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, retention_ttl="0")
    queue.start()

    health = queue.health()
    assert health is not None
    assert "retention" not in {loop.name for loop in health.loops}
