"""
Small charts as geometry: what ended when, for the eye, for a screen reader, and as numbers.

Owns scales, bars and words; the markup around them is in the templates, and the colours are in the style sheet. Bars
stand in a coordinate system of one unit a bucket by `HEIGHT`, which the page stretches to any width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy_brooq.web import shown

HEIGHT: Final = 100
BAR: Final = 0.76
"""The part of a bucket that its bar takes."""
TICKS: Final = 4
"""Parts into which the marks below a chart divide it."""
_FAINTEST: Final = 3
"""What a bar is high at least, so that one of a million is seen."""


@dataclass(frozen=True, slots=True)
class Period:
    """
    A stretch of time up to now, in buckets of the same width.
    """

    name: str
    length: timedelta
    buckets: int


HOUR: Final = Period("Last hour", timedelta(hours=1), 60)
DAY: Final = Period("Last day", timedelta(days=1), 48)


@dataclass(frozen=True, slots=True)
class Counts:
    """
    How many jobs ended how, bucket by bucket.
    """

    done: Sequence[int]
    dead: Sequence[int]
    canceled: Sequence[int]


@dataclass(frozen=True, slots=True)
class Bucket:
    """
    One stretch of time, and what ended in it.
    """

    at: int
    """Its place, from the left."""
    begin: datetime
    label: str
    done: int
    dead: int
    canceled: int

    @property
    def total(self) -> int:
        """
        How many ended in it.
        """
        return self.done + self.dead + self.canceled


@dataclass(frozen=True, slots=True)
class Band:
    """
    Bars of one scale.
    """

    top: int
    """What the whole height stands for."""
    paths: dict[str, str]
    """kind -> all its bars as one SVG path."""


@dataclass(frozen=True, slots=True)
class Chart:
    """
    What ended over a period: the good above, the dead below on a scale of their own, as one in a thousand counts too.
    """

    name: str
    summary: str
    buckets: list[Bucket]
    ended: Band
    died: Band
    ticks: list[str]
    """Times at equal distances, from the left edge to the right one."""

    @property
    def total(self) -> int:
        """
        How many ended in all.
        """
        return sum(one.total for one in self.buckets)


@dataclass(frozen=True, slots=True)
class Spark:
    """
    A chart the size of a word.
    """

    buckets: int
    summary: str
    paths: dict[str, str]


def summed(series: Iterable[Counts], buckets: int) -> Counts:
    """
    Return the sums of all *series*.
    """
    found = list(series)
    kinds = ("done", "dead", "canceled")
    columns = ([getattr(one, kind) for one in found] for kind in kinds)
    return Counts(*([sum(each) for each in zip(*column, strict=True)] or [0] * buckets for column in columns))


def chart(period: Period, moments: Sequence[datetime], counts: Counts) -> Chart:
    """
    Draw what ended within *period*, whose buckets begin at *moments*.
    """
    width = period.length / period.buckets
    buckets = [
        Bucket(at, begin, f"{shown.clock(begin)} to {shown.clock(begin + width)}", *each)
        for at, (begin, *each) in enumerate(zip(moments, counts.done, counts.dead, counts.canceled, strict=True))
    ]
    return Chart(
        period.name,
        _summary(period.name, buckets, width),
        buckets,
        _stacked({"done": counts.done, "canceled": counts.canceled}),
        _stacked({"dead": counts.dead}),
        _ticks(moments, period.length),
    )


def spark(name: str, counts: Counts) -> Spark:
    """
    Draw what ended in the height of a line: the dead at the bottom, where they are seen first.

    A bar stands for two buckets, as there is less room, and there may be many topics.
    """
    parts = {"dead": _paired(counts.dead), "done": _paired(counts.done), "canceled": _paired(counts.canceled)}
    sums = ", ".join(f"{sum(values):,} {kind}" for kind, values in parts.items() if kind == "done" or any(values))
    top = max((sum(each) for each in zip(*parts.values(), strict=True)), default=0)
    return Spark(len(parts["done"]), f"{name}: {sums}", _paths(parts, max(top, 1)))


def _paired(values: Sequence[int]) -> list[int]:
    return [sum(values[at : at + 2]) for at in range(0, len(values), 2)]


def nice(most: float) -> int:
    """
    Return the round number that a scale up to *most* ends at: 1, 2, 4, 6 or 8 times a power of ten, or the next one.
    """
    if most <= 1:
        return 1
    power = 10 ** math.floor(math.log10(most))
    return next(int(step * power) for step in (1, 2, 4, 6, 8, 10) if step * power >= most)


def _stacked(parts: Mapping[str, Sequence[int]]) -> Band:
    top = nice(max((sum(each) for each in zip(*parts.values(), strict=True)), default=0))
    return Band(top, _paths(parts, top))


def _paths(parts: Mapping[str, Sequence[int]], top: int) -> dict[str, str]:
    """
    Return the bars of each part, standing on those of the parts before it.
    """
    paths: dict[str, str] = {}
    floors = [0] * len(next(iter(parts.values()), ()))
    for kind, values in parts.items():
        bars: list[str] = []
        for at, value in enumerate(values):
            if value:
                height = max(round(value / top * HEIGHT), _FAINTEST)
                bars.append(_bar(at, floors[at], height))
                floors[at] += height
        if bars:
            paths[kind] = "".join(bars)
    return paths


def _bar(at: int, floor: int, height: int) -> str:
    bottom, ceiling = HEIGHT - floor, max(HEIGHT - floor - height, 0)
    return f"M{at + (1 - BAR) / 2:g} {bottom}V{ceiling}h{BAR:g}V{bottom}z"


def _ticks(moments: Sequence[datetime], period: timedelta) -> list[str]:
    if not moments:
        return []
    times = (moments[0] + period * part / TICKS for part in range(TICKS))
    return [*map(shown.clock, times), "now"]


def _summary(name: str, buckets: Sequence[Bucket], width: timedelta) -> str:
    done, dead, canceled = (sum(getattr(one, kind) for one in buckets) for kind in ("done", "dead", "canceled"))
    words = f"{name}: {done:,} done, {dead:,} dead, {canceled:,} canceled"
    if not done + dead + canceled:
        return words
    peak = max(buckets, key=lambda one: one.total)
    return f"{words}; the most in {shown.brief(width)}: {peak.total:,}, at {shown.clock(peak.begin)} UTC"
