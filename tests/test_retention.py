"""
Retention: what is old and ended goes, oldest first; everything else stays.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, text

from sqlalchemy_brooq.statements.retention import FIRST
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


def test_states_with_one_lifetime_share_a_statement_and_zero_keeps_for_good() -> None:
    assert lifetimes(quick()) == {timedelta(days=30): TERMINAL}
    assert lifetimes(quick(retention_ttl="0")) == {}
    assert lifetimes(quick(retention_ttl="0", retention_ttl_dead="1d")) == {timedelta(days=1): {JobState.DEAD}}


def test_active_states_are_refused() -> None:
    from sqlalchemy_brooq.statements.retention import purge

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
