"""
Adding up what workers counted: nothing falls, nothing is counted twice, and what can't be added is told apart.
"""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Summary, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sqlalchemy_brooq.supervisor.totals import Totals, plain


def worker(sold: int = 0, busy: int = 0, heat: float = 0.0) -> Any:
    """
    Return what a worker would tell.
    """
    registry = CollectorRegistry()
    Counter("sold", "What was sold.", ["what"], registry=registry).labels("tea").inc(sold)
    Gauge("brooq_busy", "Ours.", registry=registry).set(busy)
    Gauge("heat", "The program's own.", registry=registry).set(heat)
    waits = Histogram("waits", "A histogram.", buckets=(1, 5), registry=registry)
    took = Summary("took", "A summary.", registry=registry)
    for _ in range(sold):
        waits.observe(2)
        took.observe(2)
    Enum("mood", "Of the program.", states=["good", "bad"], registry=registry)
    return json.loads(json.dumps(plain(registry.collect())))


def shown(totals: Totals) -> dict[str, float]:
    """
    Return what a scrape shows, read back from its text.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(totals)
    return {
        sample.name + "".join(f" {label}={value}" for label, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_what_was_counted_is_added_up() -> None:
    totals = Totals()
    totals.tell("a", 0, worker(sold=2))
    totals.tell("b", 1, worker(sold=3))

    found = shown(totals)

    assert found["sold_total what=tea"] == found["took_count"] == found["waits_count"] == 5
    assert found["took_sum"] == found["waits_sum"] == 10
    assert [found[f"waits_bucket le={le}"] for le in ("1.0", "5.0", "+Inf")] == [0, 5, 5]


def test_a_worker_that_tells_again_is_not_counted_twice() -> None:
    totals = Totals()
    totals.tell("a", 0, worker(sold=2))
    totals.tell("a", 0, worker(sold=3))

    assert shown(totals)["sold_total what=tea"] == 3


def test_what_one_that_has_ended_counted_stays_and_what_it_was_goes() -> None:
    totals = Totals()
    totals.tell("a", 0, worker(sold=2, busy=1, heat=20.0))
    totals.forget("a")
    totals.tell("b", 0, worker(sold=1, busy=2, heat=30.0))

    found = shown(totals)

    assert (found["sold_total what=tea"], found["took_count"], found["waits_bucket le=5.0"]) == (3, 3, 3)
    assert (found["brooq_busy"], found["heat brooq_process=0"]) == (2, 30.0)
    totals.forget("b")
    assert shown(totals)["sold_total what=tea"] == 3
    assert "brooq_busy" not in shown(totals)


def test_gauges_of_the_program_are_told_apart_as_nobody_knows_whether_they_add_up() -> None:
    totals = Totals()
    totals.tell("a", 0, worker(heat=20.0))
    totals.tell("b", 1, worker(heat=30.0))

    found = shown(totals)

    assert (found["heat brooq_process=0"], found["heat brooq_process=1"]) == (20.0, 30.0)
    assert found["mood brooq_process=1 mood=good"] == 1


def test_when_a_counter_was_made_is_no_number_to_add() -> None:
    totals = Totals()
    totals.tell("a", 0, worker(sold=2))
    totals.tell("b", 1, worker(sold=2))

    assert not [name for name in shown(totals) if "_created" in name]


def test_a_worker_that_ended_before_it_told_anything_is_no_trouble() -> None:
    totals = Totals()
    totals.forget("a")

    assert shown(totals) == {}
