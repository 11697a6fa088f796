"""
The metrics: names and labels, sharing a registry, and what the sampled gauges show of what was found.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sqlalchemy_brooq.gauges import FRESH, Board, Kind, Sample, Watch
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.vocabulary import JobState, Label
from tests.commands import RunningWorker, get, shown
from tests.queues import states
from tests.waiting import eventually

#: The contract: name, type and labels of every metric.
CONTRACT = {
    "brooq_jobs": ("gauge", {"topic", "state"}),
    "brooq_ready_oldest_age_seconds": ("gauge", {"topic"}),
    "brooq_enqueued": ("counter", {"topic", "created"}),
    "brooq_claimed": ("counter", {"topic"}),
    "brooq_settle": ("counter", {"topic", "outcome"}),
    "brooq_attempt_duration_seconds": ("summary", {"topic"}),
    "brooq_requeued": ("counter", {"topic", "reason"}),
    "brooq_worker_busy": ("gauge", {"topic"}),
    "brooq_workers": ("gauge", set()),
    "brooq_hung_workers": ("counter", {"topic"}),
    "brooq_retention_deleted": ("counter", {"topic"}),
    "brooq_http_requests": ("counter", {"path", "code"}),
    "brooq_events_dropped": ("counter", {"event"}),
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watching(registry: CollectorRegistry, clock: Clock) -> Callable[[], Watch]:
    """
    Make watches whose samples *registry* shows; they live as long as the test.
    """
    board = Board()
    registry.register(board)
    kept: list[Watch] = []

    def watch() -> Watch:
        kept.append(Watch(clock))
        board.add(kept[-1])
        return kept[-1]

    return watch


def values(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """
    Return the series of *name* by their label values.
    """
    samples = [sample for family in registry.collect() for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def counted(table: str = "db", **topics: Mapping[str, int]) -> Sample:
    return Sample(table, {(topic, state): n for topic, states in topics.items() for state, n in states.items()})


def ages(table: str = "db", **topics: float) -> Sample:
    return Sample(table, {(topic,): age for topic, age in topics.items()})


class Commits:
    """
    What metrics subscribe to.
    """

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], object]] = []

    def subscribe(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def commit(self, **counts: int) -> None:
        note = SimpleNamespace(counts={("t", name == "created"): count for name, count in counts.items()})
        for callback in self.callbacks:
            callback(note)


def test_every_metric_has_the_name_the_type_and_the_labels_of_the_contract(registry: CollectorRegistry) -> None:
    commits = Commits()
    metrics = Metrics(registry)
    metrics.count_enqueued(commits.subscribe)
    commits.commit(created=2)
    metrics.claimed("t", 2)
    metrics.settled("t", Label.DONE)
    metrics.attempted("t", 0.5)
    metrics.requeued("t", "shutdown", 1)
    metrics.busy("t", 1)
    metrics.workers(4)
    metrics.hung("t")
    metrics.deleted("t", 7)
    metrics.requested("/metrics", "200")
    metrics.event_dropped("JobDone")
    metrics.watch.show(Kind.ACTIVE_COUNTS, counted(t={"pending": 1}))
    metrics.watch.show(Kind.READY_AGES, ages(t=1.5))

    found = {
        family.name: (family.type, {label for sample in family.samples for label in sample.labels})
        for family in registry.collect()
    }

    assert found == CONTRACT
    assert all(family.documentation.endswith(".") for family in registry.collect())


def test_two_queues_of_one_registry_count_a_commit_once(registry: CollectorRegistry) -> None:
    commits = Commits()
    for _ in range(2):
        Metrics(registry).count_enqueued(commits.subscribe)

    commits.commit(created=3)

    assert values(registry, "brooq_enqueued_total") == {("t", "true"): 3}


def test_counters_count_what_they_are_told(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    commits = Commits()
    metrics.count_enqueued(commits.subscribe)
    commits.commit(created=2, existing=1)
    metrics.claimed("t", 2)
    metrics.claimed("u", 3)
    metrics.settled("t", Label.PRESERVED)
    metrics.settled("t", Label.LOST)
    metrics.requeued("t", "lease_expired", 5)
    metrics.attempted("t", 0.5)
    metrics.attempted("t", 1.0)
    metrics.busy("t", 1)
    metrics.busy("t", 1)
    metrics.busy("t", -1)

    assert values(registry, "brooq_enqueued_total") == {("t", "true"): 2, ("t", "false"): 1}
    assert values(registry, "brooq_claimed_total") == {("t",): 2, ("u",): 3}
    assert values(registry, "brooq_settle_total") == {("t", "preserved"): 1, ("t", "lost"): 1}
    assert values(registry, "brooq_requeued_total") == {("t", "lease_expired"): 5}
    assert values(registry, "brooq_attempt_duration_seconds_count") == {("t",): 2}
    assert values(registry, "brooq_attempt_duration_seconds_sum") == {("t",): 1.5}
    assert values(registry, "brooq_worker_busy") == {("t",): 1}


def test_several_queues_on_one_registry_share_its_metrics(registry: CollectorRegistry) -> None:
    one, other = Metrics(registry), Metrics(registry)

    one.claimed("t", 1)
    other.claimed("t", 2)
    one.workers(4)
    other.workers(3)
    one.workers(-4)

    assert values(registry, "brooq_claimed_total") == {("t",): 3}
    assert values(registry, "brooq_workers") == {(): 3}


def test_queues_on_two_registries_share_nothing(registry: CollectorRegistry) -> None:
    elsewhere = CollectorRegistry()
    Metrics(registry).claimed("t", 1)
    Metrics(elsewhere).claimed("t", 2)

    assert values(registry, "brooq_claimed_total") == {("t",): 1}
    assert values(elsewhere, "brooq_claimed_total") == {("t",): 2}


def test_the_global_registry_is_the_default() -> None:
    assert Metrics().registry is REGISTRY
    assert Metrics().registry is REGISTRY


def test_queues_built_at_once_on_many_threads_find_one_set_of_metrics(registry: CollectorRegistry) -> None:
    together = threading.Barrier(8)
    built: list[Metrics] = []

    def build() -> None:
        together.wait()
        built.append(Metrics(registry))
        built[-1].claimed("t", 1)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(built) == 8
    assert values(registry, "brooq_claimed_total") == {("t",): 8}


def test_a_registry_that_nobody_holds_any_more_is_let_go() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.claimed("t", 1)
    left = weakref.ref(registry)

    del registry, metrics
    gc.collect()

    assert left() is None


def test_a_queue_that_nobody_holds_any_more_takes_its_samples_with_it(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.watch.show(Kind.READY_AGES, ages(t=3))
    assert values(registry, "brooq_ready_oldest_age_seconds") == {("t",): 3}

    del metrics
    gc.collect()

    assert values(registry, "brooq_ready_oldest_age_seconds") == {}


def test_a_topic_that_was_drained_shows_0(registry: CollectorRegistry, watching: Callable[[], Watch]) -> None:
    watch = watching()
    watch.show(Kind.READY_AGES, ages(m1=3.2))
    watch.show(Kind.ACTIVE_COUNTS, counted(m1={"pending": 3}))
    watch.show(Kind.TERMINAL_COUNTS, counted())
    assert values(registry, "brooq_ready_oldest_age_seconds") == {("m1",): 3.2}
    assert values(registry, "brooq_jobs")["m1", "pending"] == 3

    watch.show(Kind.READY_AGES, ages())
    watch.show(Kind.ACTIVE_COUNTS, counted())

    assert values(registry, "brooq_ready_oldest_age_seconds") == {("m1",): 0}
    assert values(registry, "brooq_jobs") == {("m1", state.value): 0 for state in JobState}

    watch.show(Kind.TERMINAL_COUNTS, counted(m1={"done": 3}))

    assert values(registry, "brooq_jobs") == {("m1", state.value): 3 * (state == "done") for state in JobState}
    assert values(registry, "brooq_ready_oldest_age_seconds") == {("m1",): 0}


def test_a_topic_without_rows_disappears(registry: CollectorRegistry, watching: Callable[[], Watch]) -> None:
    watch = watching()
    watch.show(Kind.READY_AGES, ages(gone=1, here=2))
    watch.show(Kind.ACTIVE_COUNTS, counted(gone={"failed": 1}, here={"pending": 1}))
    watch.show(Kind.TERMINAL_COUNTS, counted(gone={"dead": 1}))

    watch.show(Kind.READY_AGES, ages(here=2))
    watch.show(Kind.ACTIVE_COUNTS, counted(here={"pending": 1}))
    watch.show(Kind.TERMINAL_COUNTS, counted())

    assert {topic for topic, _ in values(registry, "brooq_jobs")} == {"here"}
    assert values(registry, "brooq_ready_oldest_age_seconds") == {("here",): 2}


def test_what_was_not_sampled_is_not_shown_as_0(registry: CollectorRegistry, watching: Callable[[], Watch]) -> None:
    watching().show(Kind.ACTIVE_COUNTS, counted(t={"pending": 1}))

    assert values(registry, "brooq_jobs") == {("t", "pending"): 1, ("t", "processing"): 0, ("t", "failed"): 0}
    assert values(registry, "brooq_ready_oldest_age_seconds") == {}


def test_a_sample_that_grew_old_is_not_shown(
    registry: CollectorRegistry, watching: Callable[[], Watch], clock: Clock
) -> None:
    watch = watching()
    watch.show(Kind.READY_AGES, ages(t=7))
    clock.now += FRESH - 1
    watch.show(Kind.ACTIVE_COUNTS, counted(t={"pending": 1}))
    assert values(registry, "brooq_ready_oldest_age_seconds") == {("t",): 7}

    clock.now += 1

    assert values(registry, "brooq_ready_oldest_age_seconds") == {}
    assert values(registry, "brooq_jobs")["t", "pending"] == 1


def test_a_sampler_that_ended_shows_nothing(registry: CollectorRegistry, watching: Callable[[], Watch]) -> None:
    watch = watching()
    watch.show(Kind.READY_AGES, ages(t=7))

    watch.clear()

    assert values(registry, "brooq_ready_oldest_age_seconds") == {}


def test_queues_on_two_databases_are_added_up(registry: CollectorRegistry, watching: Callable[[], Watch]) -> None:
    one, other = watching(), watching()
    one.show(Kind.ACTIVE_COUNTS, counted("db1", shared={"pending": 1}, mine={"failed": 2}))
    other.show(Kind.ACTIVE_COUNTS, counted("db2", shared={"pending": 4}, yours={"processing": 5}))
    one.show(Kind.READY_AGES, ages("db1", shared=7, mine=1))
    other.show(Kind.READY_AGES, ages("db2", shared=3))

    jobs = values(registry, "brooq_jobs")

    assert (jobs["shared", "pending"], jobs["mine", "failed"], jobs["yours", "processing"]) == (5, 2, 5)
    assert values(registry, "brooq_ready_oldest_age_seconds") == {("shared",): 7, ("mine",): 1, ("yours",): 0}


def test_queues_on_one_database_are_not_counted_twice(
    registry: CollectorRegistry, watching: Callable[[], Watch], clock: Clock
) -> None:
    one, other = watching(), watching()
    one.show(Kind.ACTIVE_COUNTS, counted(t={"pending": 9}, drained={"pending": 1}))
    clock.now += 1
    other.show(Kind.ACTIVE_COUNTS, counted(t={"pending": 8}))

    jobs = values(registry, "brooq_jobs")

    assert jobs["t", "pending"] == 8
    assert jobs["drained", "pending"] == 0


def test_a_scrape_tells_every_sampler_and_registering_tells_none(registry: CollectorRegistry) -> None:
    seen: list[str] = []
    one = Metrics(registry)
    one.watch.on_scrape = lambda: seen.append("one")
    other = Metrics(registry)
    other.watch.on_scrape = lambda: seen.append("other")
    assert seen == []

    generate_latest(registry)

    assert sorted(seen) == ["one", "other"]


def test_a_registry_that_describes_by_collecting_is_no_scrape() -> None:
    metrics = Metrics(CollectorRegistry(auto_describe=True))
    metrics.watch.on_scrape = lambda: pytest.fail("registering looked at the gauges")

    Metrics(metrics.registry)


def test_any_topic_that_plain_sql_can_write_is_valid_exposition(
    registry: CollectorRegistry, watching: Callable[[], Watch]
) -> None:
    hostile = ['a"b', "back\\slash", "line\nbreak", "ünï", "{}", ""]
    watching().show(Kind.READY_AGES, Sample("db", {(topic,): 1.0 for topic in hostile}))

    families = text_string_to_metric_families(generate_latest(registry).decode())

    assert {sample.labels["topic"] for family in families for sample in family.samples} == set(hostile)


def test_counters_of_served_topics_begin_at_0(registry: CollectorRegistry) -> None:
    Metrics(registry).serve(["t"])

    outcomes = values(registry, "brooq_settle_total")
    assert outcomes == {("t", label): 0.0 for label in Label if label is not Label.REQUEUED}
    assert values(registry, "brooq_claimed_total") == {("t",): 0.0}
    assert ("t", "lease_expired") in values(registry, "brooq_requeued_total")


def test_processes_that_share_a_folder_show_their_totals_and_the_table_once(
    engine: Engine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = (
        "import os, sqlalchemy as sa, sqlalchemy_brooq as brooq\n"
        "queue = brooq.Queue(sa.create_engine(os.environ['SHOP_URL']), brooq.Config(poll_interval='50ms'))\n"
        "queue.register('t', lambda claim: None)\n"
    )
    url, shared = shown(engine.url), str(tmp_path_factory.mktemp("shared"))
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "shop.py").write_text(program)
    with Session(engine) as session, session.begin():
        session.add_all([*(Job("t") for _ in range(20)), *(Job("elsewhere") for _ in range(3))])
    in_table = 'brooq_jobs{state="pending",topic="elsewhere"} 3.0'

    with (
        RunningWorker("shop:queue", cwd=folders[0], SHOP_URL=url, PROMETHEUS_MULTIPROC_DIR=shared) as one,
        RunningWorker("shop:queue", cwd=folders[1], SHOP_URL=url, PROMETHEUS_MULTIPROC_DIR=shared) as two,
    ):
        eventually(lambda: states(engine) == {"done": 20, "pending": 3})
        for worker in (one, two):
            metrics = worker.url("/metrics")
            eventually(lambda at=metrics: in_table in (found := get(at)[1]) and "brooq_workers 4.0" in found)  # type: ignore[misc]
            lines = get(metrics)[1].splitlines()
            assert lines.count('brooq_claimed_total{topic="t"} 20.0') == 1
            assert lines.count('brooq_settle_total{outcome="done",topic="t"} 20.0') == 1
            assert [line for line in lines if "elsewhere" in line and "pending" in line] == [in_table]
        one.end()
        assert "brooq_workers 2.0" in get(two.url("/metrics"))[1]
        two.end()


def test_what_was_counted_and_what_was_sampled_can_be_asked_for_apart() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.watch.show(Kind.READY_AGES, Sample("db", {("t",): 2.5}))
    metrics.claimed("t", 3)
    scrapes: list[None] = []
    metrics.watch.on_scrape = lambda: scrapes.append(None)

    counted = {family.name for family in metrics.counted()}
    sampled = {family.name for family in metrics.sampled()}

    assert "brooq_claimed" in counted
    assert sampled == {"brooq_jobs", "brooq_ready_oldest_age_seconds"}
    assert not counted & sampled
    assert len(scrapes) == 1
    assert metrics.registry.get_sample_value("brooq_ready_oldest_age_seconds", {"topic": "t"}) == 2.5
