"""
The metrics: their names, labels and meanings, and what a scrape is answered with.

Counters move where things happen; gauges about the whole table are what a sampler found last: a scrape never queries.
Knows nothing of SQL, threads or HTTP.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from sqlalchemy_brooq.vocabulary import TERMINAL, JobState, Label

FRESH: Final = 300.0
"""Seconds for which a sample is shown. Prometheus itself takes a series for gone after five minutes."""

REASONS: Final = ("lease_expired", "shutdown", "answer_lost")
"""Why jobs return to circulation without a recorded failure."""

Series = tuple[str, ...]
"""The label values of one series; the first is the topic."""

Child = TypeVar("Child")


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


class Metrics:
    """
    The metrics of one queue; queues that share a registry share them.

    Args:
        registry: Where they are registered; prometheus_client's global registry if not given.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = REGISTRY if registry is None else registry
        self._families = families = _families_in(self.registry)
        self._claimed = _Children(families.claimed.labels)
        self._settled = _Children(families.settled.labels)
        self._attempts = _Children(families.attempts.labels)
        self._requeued = _Children(families.requeued.labels)
        self._busy = _Children(families.busy.labels)
        self._workers = families.workers
        self._hung = _Children(families.hung.labels)
        self._deleted = _Children(families.deleted.labels)
        self._requests = _Children(families.requests.labels)
        self._dropped = _Children(families.dropped.labels)
        self.watch = Watch()
        """What the queue's sampler finds."""
        families.board.add(self.watch)

    def count_enqueued(self, subscribe: Callable[[Callable[[Any], object]], Callable[[], object]]) -> None:
        """
        Count what the transactions of this process enqueue, once for all queues that share the registry.

        Args:
            subscribe: Takes a callback, and calls it with what each committed transaction enqueued.
        """
        with _registering:
            if self._families.counting:
                return
            self._families.counting = True
        families = weakref.ref(self._families)  # the subscription must not keep alive what nobody else has
        unsubscribe = subscribe(lambda note: _count(families(), note.counts))
        weakref.finalize(self._families, unsubscribe)

    def exposed(self) -> CollectorRegistry:
        """
        Return the registry to expose: the queue's own, or with ``PROMETHEUS_MULTIPROC_DIR`` one of all processes.

        The gauges about the whole table are this process's, and stand in no file, so they are never added up.
        """
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self.registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(self._families.board)
        return registry

    def serve(self, topics: Iterable[str]) -> None:
        """
        Begin the counters of *topics* at 0: what appears with its first event looks to ``increase()`` like no event.
        """
        for topic in topics:
            for each in (self._claimed, self._attempts, self._busy, self._hung):
                each[topic,]
            for label in set(Label) - {Label.REQUEUED}:
                self._settled[topic, label]
            for reason in REASONS:
                self._requeued[topic, reason]

    def sampled(self) -> Iterable[GaugeMetricFamily]:
        """
        Return the gauges about the whole table alone; for the samplers that is a scrape.
        """
        return self._families.board.gauges()

    def counted(self) -> list[Metric]:
        """
        Return all that the registry collects but these gauges; no sampler takes it for a scrape.
        """
        with self._families.board.passed_by():
            return list(self.registry.collect())

    def claimed(self, topic: str, count: int) -> None:
        """
        Count claimed jobs.
        """
        self._claimed[topic,].inc(count)

    def settled(self, topic: str, label: Label, count: int = 1) -> None:
        """
        Count attempts that ended, by how.
        """
        self._settled[topic, label].inc(count)

    def attempted(self, topic: str, seconds: float) -> None:
        """
        Count a handler that ended after *seconds*.
        """
        self._attempts[topic,].observe(seconds)

    def requeued(self, topic: str, reason: str, count: int) -> None:
        """
        Count jobs that returned to circulation without a recorded failure.
        """
        self._requeued[topic, reason].inc(count)

    def busy(self, topic: str, change: int) -> None:
        """
        Let *change* more handlers be running; fewer if negative.
        """
        self._busy[topic,].inc(change)

    def workers(self, change: int) -> None:
        """
        Let the process have *change* more slots; fewer if negative.
        """
        self._workers.inc(change)

    def hung(self, topic: str) -> None:
        """
        Count a handler that ignores its interruption.
        """
        self._hung[topic,].inc()

    def deleted(self, topic: str, count: int) -> None:
        """
        Count jobs that retention deleted.
        """
        self._deleted[topic,].inc(count)

    def event_dropped(self, event: str) -> None:
        """
        Count an event that the consumer's callbacks were too slow for.
        """
        self._dropped[event,].inc()

    def requested(self, path: str, code: str) -> None:
        """
        Count an answer of the service surface; *path* must be one of a few.
        """
        self._requests[path, code].inc()


class _Families:
    """
    The collectors of one registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"brooq_{name}_total", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            # The mode matters only where forked processes share PROMETHEUS_MULTIPROC_DIR.
            return Gauge(f"brooq_{name}", text, labels, registry=registry, multiprocess_mode="livesum")

        self.enqueued = counter(
            "enqueued",
            "Jobs enqueued by committed transactions of this process; created is false where the key existed already.",
            "topic",
            "created",
        )
        self.claimed = counter("claimed", "Jobs claimed by this process.", "topic")
        self.settled = counter(
            "settle",
            "Attempts that ended, by the outcome written; lost where none was ours to write.",
            "topic",
            "outcome",
        )
        self.attempts = Summary(
            "brooq_attempt_duration_seconds",
            "How long handlers ran, whatever came of it.",
            ["topic"],
            registry=registry,
        )
        self.requeued = counter(
            "requeued", "Jobs returned to circulation without a recorded failure.", "topic", "reason"
        )
        self.busy = gauge("worker_busy", "Handlers that run in this process.", "topic")
        self.workers = gauge("workers", "Slots for handlers in this process.")
        self.hung = counter("hung_workers", "Handlers that ignored their interruption.", "topic")
        self.deleted = counter("retention_deleted", "Terminal jobs deleted by retention.", "topic")
        self.requests = counter("http_requests", "Requests answered by the service surface.", "path", "code")
        self.dropped = counter("events_dropped", "Events that callbacks were too slow to be told of.", "event")
        self.board = Board()
        self.counting = False
        """Whether enqueued jobs are counted."""
        registry.register(self.board)


def _count(families: _Families | None, counts: Mapping[tuple[str, bool], int]) -> None:
    if families is not None:
        for (topic, created), count in counts.items():
            families.enqueued.labels(topic, "true" if created else "false").inc(count)


class _Children(dict[Series, Child], Generic[Child]):
    """
    The children of a family by their label values: found without the lock that ``labels`` takes.
    """

    def __init__(self, labels: Callable[..., Child]) -> None:
        super().__init__()
        self._labels = labels

    def __missing__(self, series: Series) -> Child:
        child = self[series] = self._labels(*series)
        return child


_registered: Final[WeakKeyDictionary[CollectorRegistry, _Families]] = WeakKeyDictionary()
_registering: Final = threading.Lock()


def _families_in(registry: CollectorRegistry) -> _Families:
    with _registering:
        families = _registered.get(registry)
        if families is None:
            families = _registered[registry] = _Families(registry)
        return families


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
