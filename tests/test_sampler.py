"""
The gauge sampler: when it asks, on a clock of the test's, and what PostgreSQL answers.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, CompoundSelect, Engine, Select, create_engine, text
from sqlalchemy.exc import OperationalError

from sqlalchemy_brooq.gauges import Kind, Sample, Watch
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.model import Job, metadata
from sqlalchemy_brooq.statements import watching
from sqlalchemy_brooq.worker.loops import Loop
from sqlalchemy_brooq.worker.sampler import (
    INTEREST,
    LONGEST_PERIOD,
    NAP,
    PERIODS,
    Sampler,
    SamplerStore,
)
from tests.queues import add, on
from tests.waiting import eventually

AGES, ACTIVE, TERMINAL = Kind.READY_AGES, Kind.ACTIVE_COUNTS, Kind.TERMINAL_COUNTS


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class ScriptedPort:
    """
    Writes down what it is asked for; answers with nothing found, late, or not within the budget.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[Kind] = []
        self.too_slow: set[Kind] = set()
        self.takes = 0.0
        self.error: Exception | None = None

    def sample(self, kind: Kind) -> Sample | None:
        self.asked.append(kind)
        self.clock.now += self.takes
        if self.error is not None:
            raise self.error
        return None if kind in self.too_slow else Sample("db", {})

    def taken(self) -> list[Kind]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def port(clock: Clock) -> ScriptedPort:
    return ScriptedPort(clock)


@pytest.fixture
def watch(clock: Clock) -> Watch:
    return Watch(clock)


@pytest.fixture
def sampler(port: ScriptedPort, watch: Watch, clock: Clock) -> Sampler:
    return Sampler(port, watch, clock)


# -- when it asks


def test_the_first_round_asks_for_everything(sampler: Sampler, port: ScriptedPort) -> None:
    assert sampler.round() == 15.0
    assert port.taken() == [AGES, ACTIVE, TERMINAL]


def test_active_jobs_are_sampled_every_15_s_and_terminal_ones_every_60(
    sampler: Sampler, port: ScriptedPort, watch: Watch, clock: Clock
) -> None:
    began, moments = clock.now, []
    while clock.now - began <= 120:
        watch.on_scrape()
        pause = sampler.round()
        moments += [(clock.now - began, kind) for kind in port.taken()]
        clock.now += pause

    assert [at for at, kind in moments if kind is ACTIVE] == [15.0 * n for n in range(9)]
    assert [at for at, kind in moments if kind is AGES] == [15.0 * n for n in range(9)]
    assert [at for at, kind in moments if kind is TERMINAL] == [0.0, 60.0, 120.0]


def test_a_round_that_begins_early_asks_for_nothing(sampler: Sampler, port: ScriptedPort, clock: Clock) -> None:
    sampler.round()
    port.taken()
    clock.now += 5

    assert sampler.round() == 10.0
    assert port.taken() == []


def test_the_time_that_a_sample_takes_is_part_of_the_period(sampler: Sampler, port: ScriptedPort, clock: Clock) -> None:
    port.takes = 0.5

    assert sampler.round() == 15.0 - 3 * 0.5


def test_it_stops_asking_2_minutes_after_the_last_scrape(
    sampler: Sampler, port: ScriptedPort, watch: Watch, clock: Clock
) -> None:
    watch.on_scrape()
    clock.now += INTEREST - 0.1
    sampler.round()
    assert port.taken() != []
    clock.now += 15

    assert sampler.round() == NAP
    assert port.taken() == []


def test_the_start_counts_as_a_scrape(sampler: Sampler, port: ScriptedPort, clock: Clock) -> None:
    clock.now += INTEREST - 0.1
    sampler.round()
    assert port.taken() != []
    clock.now += 0.1

    sampler.round()

    assert port.taken() == []


def test_a_scrape_wakes_it_and_everything_that_is_due_is_asked_for(
    sampler: Sampler, port: ScriptedPort, watch: Watch, clock: Clock
) -> None:
    woken: list[float] = []
    sampler.wake = lambda: woken.append(clock.now)
    sampler.round()
    port.taken()
    clock.now += 3_600
    sampler.round()
    assert port.taken() == []

    watch.on_scrape()
    sampler.round()

    assert woken == [clock.now]
    assert port.taken() == [AGES, ACTIVE, TERMINAL]


def test_frequent_scrapes_cost_no_more_samples(
    sampler: Sampler, port: ScriptedPort, watch: Watch, clock: Clock
) -> None:
    for _ in range(60):
        watch.on_scrape()
        sampler.round()
        clock.now += 0.5

    assert port.taken() == [AGES, ACTIVE, TERMINAL, AGES, ACTIVE]


def test_a_count_over_its_budget_is_asked_for_less_and_less_often_and_said_once(
    sampler: Sampler, port: ScriptedPort, watch: Watch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    port.too_slow = {TERMINAL}
    began, moments = clock.now, []
    with caplog.at_level(logging.INFO, "sqlalchemy_brooq.worker"):
        while clock.now - began < 6_000:
            watch.on_scrape()
            pause = sampler.round()
            moments += [clock.now - began for kind in port.taken() if kind is TERMINAL]
            clock.now += pause

    assert moments == [0, 120, 360, 840, 1_800, 1_800 + LONGEST_PERIOD, 1_800 + 2 * LONGEST_PERIOD]
    assert [record.getMessage() for record in caplog.records] == [
        "sampler: the counts of terminal jobs took longer than 1 s: they are left out of the metrics; next try in 120 s"
    ]


def test_a_count_that_fits_its_budget_again_is_asked_for_as_often_as_before(
    sampler: Sampler, port: ScriptedPort, watch: Watch, clock: Clock
) -> None:
    port.too_slow = {ACTIVE}
    sampler.round()
    port.too_slow = set()
    clock.now += 2 * PERIODS[ACTIVE]
    sampler.round()
    port.taken()

    clock.now += PERIODS[ACTIVE]
    sampler.round()

    assert port.taken() == [AGES, ACTIVE]


def test_a_failed_round_asks_again_for_what_it_missed_only(sampler: Sampler, port: ScriptedPort, clock: Clock) -> None:
    port.error = RuntimeError("the database is down")
    with pytest.raises(RuntimeError, match="down"):
        sampler.round()
    assert port.taken() == [AGES]
    port.error = None
    clock.now += 0.1

    sampler.round()

    assert port.taken() == [AGES, ACTIVE, TERMINAL]


def test_a_closed_sampler_shows_nothing_and_hears_of_no_scrape(
    sampler: Sampler, port: ScriptedPort, watch: Watch
) -> None:
    sampler.wake = lambda: pytest.fail("a closed sampler was woken")
    sampler.round()

    sampler.close()
    watch.on_scrape()

    assert watch.shown(ACTIVE) is None


def test_a_scrape_ends_the_sleep_of_its_loop(port: ScriptedPort, clock: Clock) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    sampler = Sampler(port, metrics.watch, clock)
    loop = Loop("sampler", sampler.round, period=NAP)
    sampler.wake = loop.wake
    clock.now += INTEREST
    loop.start()
    assert not port.asked

    list(registry.collect())

    eventually(lambda: port.asked == [AGES, ACTIVE, TERMINAL])
    loop.stop()
    assert loop.join(5)


def test_a_sleeping_sampler_is_healthy(sampler: Sampler, clock: Clock) -> None:
    clock.now += 100 * INTEREST

    assert sampler.round() <= NAP


# -- what the database answers


@pytest.fixture
def store(engine: Engine) -> SamplerStore:
    return SamplerStore(on(engine))


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def found(store: SamplerStore, kind: Kind) -> dict[tuple[str, ...], float]:
    sample = store.sample(kind)
    assert sample is not None
    return dict(sample.values)


def put(engine: Engine, topic: str, **states: int) -> None:
    """
    Put rows into states, as far as the table's own rules go.
    """
    for state, count in states.items():
        execute(
            engine,
            f"INSERT INTO job (topic, state, locked_by, locked_until, claimed_at) SELECT '{topic}', '{state}', 'w',"
            f" now() + interval '1 h', now() FROM generate_series(1, {count})",
        )


def test_an_empty_table_has_no_series(store: SamplerStore) -> None:
    assert [found(store, kind) for kind in Kind] == [{}, {}, {}]


def test_jobs_are_counted_by_topic_and_state(engine: Engine, store: SamplerStore) -> None:
    put(engine, "a", pending=3, processing=2, failed=1, done=5, dead=1)
    put(engine, "b", processing=1, canceled=2)

    assert found(store, ACTIVE) == {
        ("a", "pending"): 3,
        ("a", "processing"): 2,
        ("a", "failed"): 1,
        ("b", "processing"): 1,
    }
    assert found(store, TERMINAL) == {("a", "done"): 5, ("a", "dead"): 1, ("b", "canceled"): 2}


def test_the_age_is_that_of_the_oldest_ready_job_of_any_priority(engine: Engine, store: SamplerStore) -> None:
    add(engine, *(Job("a", priority=priority) for priority in range(-2, 3)), Job("b"), Job("b"))
    execute(
        engine,
        "UPDATE job SET available_at = now() - interval '100 s' WHERE topic = 'a' AND priority = -1",
        "UPDATE job SET available_at = now() - interval '10 s', state = 'failed' WHERE topic = 'a' AND priority = 2",
    )

    ages = found(store, AGES)

    assert 100 <= ages["a",] < 110
    assert 0 <= ages["b",] < 10


def test_scheduled_running_and_terminal_jobs_are_not_ready(engine: Engine, store: SamplerStore) -> None:
    add(engine, Job("later", delay=timedelta(hours=1)))
    put(engine, "busy", processing=1, done=1, dead=1, canceled=1)
    execute(engine, "UPDATE job SET available_at = now() - interval '1 h' WHERE topic = 'busy'")

    assert found(store, AGES) == {("later",): 0}


@pytest.mark.parametrize("moment", ["-infinity", "infinity", "4713-01-01 BC", "294276-01-01"])
def test_no_moment_that_plain_sql_can_write_fails_a_round(engine: Engine, store: SamplerStore, moment: str) -> None:
    execute(engine, f"INSERT INTO job (topic, available_at) VALUES ('odd', '{moment}')")

    assert found(store, AGES)["odd",] >= 0


def test_topics_are_found_whatever_they_are_called(engine: Engine, store: SamplerStore) -> None:
    topics = ["a", "a-b", "a.b", "a_b", "ab", "z9", "Z", "ünï", "", "0"]
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (topic) VALUES (:topic)"), [{"topic": topic} for topic in topics])

    assert found(store, AGES).keys() == {(topic,) for topic in topics}


def test_a_statement_over_its_budget_finds_nothing_and_leaves_the_connection_as_it_was(database_url: URL) -> None:
    single = create_engine(database_url, pool_size=1, max_overflow=0)
    elsewhere = create_engine(database_url)
    store = SamplerStore(on(single), budget=0.3)

    with elsewhere.begin() as holder:
        holder.execute(text("LOCK TABLE job"))
        assert store.sample(ACTIVE) is None

    assert store.sample(ACTIVE) is not None
    with single.connect() as connection:
        assert connection.scalar(text("SHOW statement_timeout")) == "0"
    single.dispose()
    elsewhere.dispose()


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_the_budget_holds_whatever_the_isolation_level_of_the_engine(database_url: URL, level: Any) -> None:
    engine = create_engine(database_url, isolation_level=level)
    store = SamplerStore(on(engine), budget=0.3)
    put(engine.execution_options(isolation_level="READ COMMITTED"), "t", pending=1)
    assert found(store, ACTIVE) == {("t", "pending"): 1}

    with engine.connect().execution_options(isolation_level="READ COMMITTED") as holder, holder.begin():
        holder.execute(text("LOCK TABLE job"))
        assert store.sample(ACTIVE) is None
    engine.dispose()


def test_a_database_that_can_not_be_reached_is_an_error(server_url: URL) -> None:
    engine = create_engine(server_url.set(database="brooq_there_is_none"))

    with pytest.raises(OperationalError):
        SamplerStore(on(engine)).sample(ACTIVE)
    engine.dispose()


def test_two_schemas_of_one_database_are_two_tables(engine: Engine) -> None:
    execute(engine, 'CREATE SCHEMA "o\'Brien ""2"" %"')
    tenant = engine.execution_options(schema_translate_map={None: 'o\'Brien "2" %'})
    metadata.create_all(tenant)
    put(engine, "t", pending=1)

    here, there = SamplerStore(on(engine)).sample(ACTIVE), SamplerStore(on(tenant)).sample(ACTIVE)

    assert here is not None
    assert there is not None
    assert here.values == {("t", "pending"): 1}
    assert there.values == {}
    assert here.table != there.table


def test_one_table_is_one_by_whatever_way_it_is_reached(engine: Engine, database_url: URL) -> None:
    other = create_engine(database_url.update_query_dict({"options": "-c search_path=pg_temp,public"}))
    translated = engine.execution_options(schema_translate_map={None: "public"})

    samples = [SamplerStore(on(way)).sample(ACTIVE) for way in (engine, other, translated)]

    assert len({sample.table for sample in samples if sample is not None}) == 1
    assert None not in samples
    other.dispose()


def test_two_databases_are_two_tables(engine: Engine, empty_database_url: URL) -> None:
    other = create_engine(empty_database_url)
    metadata.create_all(other)

    here, there = SamplerStore(on(engine)).sample(ACTIVE), SamplerStore(on(other)).sample(ACTIVE)

    assert here is not None
    assert there is not None
    assert here.table != there.table
    other.dispose()


def test_no_gauge_keeps_its_last_value(engine: Engine, store: SamplerStore, clock: Clock) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    sampler = Sampler(store, metrics.watch, clock)

    def scraped() -> dict[str, float]:
        clock.now += PERIODS[TERMINAL]
        sampler.round()
        names = ("brooq_jobs", "brooq_ready_oldest_age_seconds")
        families = [family for family in registry.collect() if family.name in names]
        return {sample.labels.get("state", "age"): sample.value for family in families for sample in family.samples}

    add(engine, Job("m1"), Job("m1"), Job("m1"))
    execute(engine, "UPDATE job SET available_at = now() - interval '3 s'")
    zero = dict.fromkeys(("pending", "processing", "failed", "done", "dead", "canceled", "age"), 0.0)

    waiting = scraped()
    assert waiting["age"] >= 3
    assert waiting == {**zero, "pending": 3, "age": waiting["age"]}
    for state in ("processing", "failed", "done", "dead"):
        lease = "locked_by = 'w', locked_until = now(), claimed_at = now()"
        execute(engine, f"UPDATE job SET state = '{state}', {lease}, available_at = now() + interval '1 h'")
        assert scraped() == {**zero, state: 3}
    execute(engine, "DELETE FROM job")
    assert scraped() == {}


# -- at what cost


def sql_of(statement: Select[Any] | CompoundSelect[Any]) -> str:
    return str(statement.compile(create_engine("postgresql+psycopg://")))


def plan_of(engine: Engine, statement: Select[Any] | CompoundSelect[Any]) -> str:
    """
    Return the plan that a server-side prepared statement has in the long run.
    """
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
        connection.execute(text(f"PREPARE q AS {sql_of(statement)}"))
        plan = connection.execute(text("EXPLAIN EXECUTE q")).scalars().all()
        connection.execute(text("DEALLOCATE q"))
    return "\n".join(plan)


def test_active_jobs_are_found_through_the_partial_indexes_beside_a_million_that_are_over(
    history_engine: Engine,
) -> None:
    for analyzed in (False, True):
        if analyzed:
            put(history_engine, "t", pending=1_000, failed=100, processing=50)
            execute(history_engine, "ANALYZE job")
        counts, ages = (plan_of(history_engine, query()) for query in (watching.active_counts, watching.ready_ages))

        assert "Seq Scan on job" not in counts + ages
        assert "job_ready" in counts
        assert "job_leased" in counts
        assert "job_ready_topic" in ages
        assert blocks(history_engine, watching.active_counts()) < 1_200  # of 30,000; each active row, at worst
        assert blocks(history_engine, watching.ready_ages()) < 100


def test_a_million_terminal_jobs_are_counted_within_the_budget_or_left_out_soon(history_engine: Engine) -> None:
    began = time.monotonic()
    sample = SamplerStore(on(history_engine), budget=0.02).sample(TERMINAL)
    assert time.monotonic() - began < 1.0
    assert sample is None

    sample = SamplerStore(on(history_engine), budget=30.0).sample(TERMINAL)
    assert sample is not None
    assert sum(sample.values.values()) == 1_000_000


def test_the_ages_of_a_long_backlog_are_looked_up_not_searched_for(engine: Engine) -> None:
    put(engine, "t", pending=100_000)
    execute(engine, "ANALYZE job")

    assert blocks(engine, watching.ready_ages()) < 100


def blocks(engine: Engine, statement: Select[Any] | CompoundSelect[Any]) -> int:
    """
    Return how many blocks of the table and its indexes *statement* looks at.
    """
    with engine.connect() as connection:
        plan = connection.scalar(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql_of(statement)}"))
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
