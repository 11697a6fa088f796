"""
The gauges about the whole table: what the samplers found last, and how a scrape shows that of all queues.

A scrape never queries. Knows nothing of SQL or HTTP; who samples, and when, is the engine's.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple
from weakref import WeakSet

from prometheus_client.core import GaugeMetricFamily

from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

FRESH: Final = 300.0
"""Seconds for which a sample is shown. Prometheus itself takes a series for gone after five minutes."""

Series = tuple[str, ...]
"""The label values of one series; the first is the topic."""


class Kind(Enum):
    """
    What a sampler asks the database for.
    """

    READY_AGES = "ages of the oldest ready jobs"
    ACTIVE_COUNTS = "counts of active jobs"
    TERMINAL_COUNTS = "counts of terminal jobs"

    def series(self, topic: str) -> Iterator[Series]:
        """
        Return the series that a known *topic* has.
        """
        if self is Kind.READY_AGES:
            return iter([(topic,)])
        wanted = TERMINAL if self is Kind.TERMINAL_COUNTS else frozenset(JobState) - TERMINAL
        return ((topic, state.value) for state in JobState if state in wanted)

    def merge(self, one: float, other: float) -> float:
        """
        Return the value of a series that two tables have.
        """
        return max(one, other) if self is Kind.READY_AGES else one + other


class Sample(NamedTuple):
    """
    What a sampler found; a series that isn't there is at 0.
    """

    table: Hashable
    """Which table this is about: equal for two queues on one table."""
    values: Mapping[Series, float]


class Watch:
    """
    What the sampler of one queue found last, from where a scrape takes it.

    A topic that was seen stays, at 0, until a sample of the terminal states shows that it has no row left.

    Args:
        clock: Seconds that only rise.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: Mapping[Kind, tuple[float, Sample]] = {}
        self.topics: frozenset[str] = frozenset()
        self.on_scrape: Callable[[], None] = lambda: None
        """Called by each scrape, on its thread."""

    def show(self, kind: Kind, sample: Sample) -> None:
        """
        Show *sample* instead of the one before it.
        """
        # Replaced, never changed: a scrape reads on another thread.
        self._samples = {**self._samples, kind: (self._clock(), sample)}
        if kind is Kind.TERMINAL_COUNTS:
            self.topics = _topics(found for _, found in self._samples.values())
        else:
            self.topics |= _topics([sample])

    def clear(self) -> None:
        """
        Show nothing any more: nobody samples.
        """
        self._samples, self.topics = {}, frozenset()

    def shown(self, kind: Kind) -> tuple[float, Sample] | None:
        """
        Return the last sample of *kind* and its time, unless it is too old to be shown.
        """
        found = self._samples.get(kind)
        return found if found is not None and self._clock() - found[0] < FRESH else None


class Board:
    """
    Collects the samples of all queues of a registry, as the gauges about the whole table.

    Queues on one table are shown once, by the newest sample. Over several tables a topic's jobs are added up,
    and its oldest ready job is the oldest of all.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # Weak: a queue that was dropped takes its samples with it.
        self._watches: WeakSet[Watch] = WeakSet()
        self._here = threading.local()

    def add(self, watch: Watch) -> None:
        """
        Show the samples of *watch* too.
        """
        with self._guard:
            self._watches.add(watch)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """
        Return the gauges without a value, so that registering is no scrape.
        """
        return _sampled_gauges()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """
        Return the gauges, for a scrape.
        """
        return () if getattr(self._here, "passed_by", False) else self.gauges()

    @contextlib.contextmanager
    def passed_by(self) -> Iterator[None]:
        """
        Let what this thread collects go without the gauges.
        """
        self._here.passed_by = True
        try:
            yield
        finally:
            self._here.passed_by = False

    def gauges(self) -> Iterable[GaugeMetricFamily]:
        """
        Return the gauges as they were sampled last, and let the samplers know that somebody looked.
        """
        with self._guard:
            watches = list(self._watches)
        for watch in watches:
            watch.on_scrape()
        jobs, ages = _sampled_gauges()
        for kind in Kind:
            gauge = ages if kind is Kind.READY_AGES else jobs
            for series, value in sorted(_merged(watches, kind).items()):
                gauge.add_metric(series, value)
        return jobs, ages


def _sampled_gauges() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    everywhere = "Sampled from the whole table: over processes take max(), not sum()."
    return (
        GaugeMetricFamily("brooq_jobs", f"Jobs by state. {everywhere}", labels=["topic", "state"]),
        GaugeMetricFamily(
            "brooq_ready_oldest_age_seconds",
            f"Since when the job that has been ready for longest is ready; 0 where none is. {everywhere}",
            labels=["topic"],
        ),
    )


def _merged(watches: Iterable[Watch], kind: Kind) -> dict[Series, float]:
    """
    Return one value for each series of *kind*.
    """
    tables: dict[Hashable, list[tuple[float, Sample, frozenset[str]]]] = {}
    for watch in watches:
        if (found := watch.shown(kind)) is not None:
            taken_at, sample = found
            tables.setdefault(sample.table, []).append((taken_at, sample, watch.topics))
    merged: dict[Series, float] = {}
    for samples in tables.values():
        for series, value in _of_one_table(samples, kind):
            merged[series] = kind.merge(merged.get(series, 0.0), value)
    return merged


def _of_one_table(
    samples: Sequence[tuple[float, Sample, frozenset[str]]], kind: Kind
) -> Iterator[tuple[Series, float]]:
    _, newest, _ = max(samples, key=operator.itemgetter(0))
    for topic in frozenset().union(*(topics for _, _, topics in samples)):
        for series in kind.series(topic):
            yield series, newest.values.get(series, 0.0)


def _topics(samples: Iterable[Sample]) -> frozenset[str]:
    return frozenset(series[0] for sample in samples for series in sample.values)
