"""
The metrics of a process: their names, labels and meanings, and what a scrape is answered with.

Counters move where things happen; the gauges about the whole table are the board's in `gauges`. Knows nothing of SQL,
threads or HTTP.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from sqlalchemy_brooq.gauges import Board, Series, Watch
from sqlalchemy_brooq.vocabulary import Label

REASONS: Final = ("lease_expired", "shutdown", "answer_lost")
"""Why jobs return to circulation without a recorded failure."""

Child = TypeVar("Child")


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
