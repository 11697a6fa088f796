"""
The metrics of all workers, added up.

Each worker tells what it has counted: when it is asked, every second or so besides, and when it ends. What one that
has ended told last stays in the sums, so that no counter ever falls, which Prometheus would take for a restart. All
that can be missing is what a killed worker counted in its last second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client import Metric

LABEL: Final = "brooq_process"
"""Tells apart what can't be added up."""

_ADDED: Final = frozenset({"counter", "summary", "histogram"})
_OURS: Final = "brooq_"
"""What the names of our own metrics begin with: their gauges are made to be added up, too."""
_CREATED: Final = "_created"
"""What the name of a sample ends with that says when its counter was made: no number to add."""

Told = Sequence[Any]
"""(name, text, type, samples) of each family, a sample being (name, labels, value)."""
Key = tuple[str, tuple[tuple[str, str], ...]]


def plain(families: Iterable[Metric]) -> Told:
    """
    Return *families* as they are told, in what JSON can say.
    """
    return [
        (
            family.name,
            family.documentation,
            family.type,
            [(sample.name, sample.labels, sample.value) for sample in family.samples],
        )
        for family in families
    ]


def metric(name: str, text: str, kind: str, samples: Iterable[Sequence[Any]]) -> Metric:
    """
    Return a family that was told.
    """
    family = Metric(name, text, kind)
    for sample, labels, value in samples:
        family.add_sample(sample, dict(labels), value)
    return family


class _Family(NamedTuple):
    text: str
    kind: str
    values: dict[Key, float]


class _Sum:
    """
    A sum of what several workers told.
    """

    def __init__(self) -> None:
        self.families: dict[str, _Family] = {}

    def add(self, told: Told, place: int | None) -> None:
        """
        Add what a worker told.

        Args:
            told: What.
            place: Which worker's it is; None for one that has ended, of which only what it counted is left.
        """
        for name, text, kind, samples in told:
            values = self.families.setdefault(name, _Family(text, kind, {})).values
            adds_up = kind in _ADDED or (place is not None and name.startswith(_OURS))
            if not adds_up and place is None:
                continue
            for sample, labels, value in samples:
                if kind in _ADDED and sample.endswith(_CREATED):
                    continue
                key = sample, tuple(sorted(labels.items() if adds_up else {**labels, LABEL: str(place)}.items()))
                values[key] = values.get(key, 0.0) + value

    def told(self) -> Told:
        """
        Return the sum, as if one worker had told it.
        """
        return [
            (name, family.text, family.kind, [(sample, dict(labels), value) for (sample, labels), value in rows])
            for name, family in self.families.items()
            for rows in [family.values.items()]
        ]


class Totals:
    """
    A collector of what all workers told; any thread may ask it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._told: dict[str, tuple[int, Told]] = {}
        self._ended = _Sum()

    def tell(self, worker: str, place: int, told: Told) -> None:
        """
        Take note of what *worker* tells, instead of what it told before.
        """
        with self._guard:
            self._told[worker] = place, told

    def forget(self, worker: str) -> None:
        """
        Keep only what *worker* has counted: it has ended.
        """
        with self._guard:
            _, told = self._told.pop(worker, (0, ()))
            self._ended.add(told, None)

    def collect(self) -> Iterable[Metric]:
        """
        Return the sums.
        """
        total = _Sum()
        with self._guard:
            total.add(self._ended.told(), None)
            for place, told in self._told.values():
                total.add(told, place)
        return [metric(*family) for family in total.told()]
