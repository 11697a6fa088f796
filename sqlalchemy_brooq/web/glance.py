"""
The overview's figures: totals, and a row for each topic with its trends.

Owns which figure deserves an alarm, and what of it is unknown. Asks for nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy_brooq.durations import counted
from sqlalchemy_brooq.overview import Holder, Throughput, TopicOverview
from sqlalchemy_brooq.web import charts, shown
from sqlalchemy_brooq.web.charts import Counts, Spark
from sqlalchemy_brooq.web.reading import Answer

LATE: Final = 60.0
"""Seconds of waiting from which on the oldest ready job is pointed out."""
_COUNTED: Final = {
    "ready": "the ready jobs",
    "in_flight": "those in flight",
    "last_hour": "what ended within the last hour and day",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """
    One figure.
    """

    name: str
    value: int | None
    """``None`` is unknown."""
    note: str = ""
    alarm: str = ""
    """What the style sheet calls that which is wrong."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    A topic, and its trends if they are known.
    """

    topic: TopicOverview
    hour: Spark | None
    day: Spark | None

    @property
    def is_late(self) -> bool:
        """
        Whether its oldest ready job waits for long.
        """
        return (self.topic.oldest_ready_seconds or 0) >= LATE


@dataclass(frozen=True, slots=True)
class Glance:
    """
    What the overview begins with.
    """

    tiles: Sequence[Tile] = ()
    rows: Sequence[Row] = ()
    unknown: Sequence[str] = ()
    """What couldn't be counted in time."""
    reason: str | None = None
    """Why nothing of it is known."""


def glance(
    topics: Answer[list[TopicOverview]],
    holders: Answer[list[Holder]],
    hour: Answer[Throughput],
    day: Answer[Throughput],
) -> Glance:
    """
    Put the figures together.
    """
    if topics.value is None:
        return Glance(reason=topics.reason)
    hours, days = (_series(answer) for answer in (hour, day))
    rows = [
        Row(one, _spark(charts.HOUR.name, hours, one.topic, hour), _spark(charts.DAY.name, days, one.topic, day))
        for one in topics.value
    ]
    unknown = [words for name, words in _COUNTED.items() if any(getattr(one, name) is None for one in topics.value)]
    return Glance(_tiles(topics.value, holders), rows, unknown)


def counts_of(answer: Throughput) -> Counts:
    """
    Return the sums of all topics.
    """
    return charts.summed(_series(Answer(answer)).values(), len(answer.moments))


def _series(answer: Answer[Throughput]) -> dict[str, Counts]:
    found = answer.value.topics if answer.value else {}
    return {topic: Counts(one.done, one.dead, one.canceled) for topic, one in found.items()}


def _spark(name: str, series: Mapping[str, Counts], topic: str, answer: Answer[Throughput]) -> Spark | None:
    if answer.value is None:
        return None
    nothing = [0] * len(answer.value.moments)
    return charts.spark(name, series.get(topic) or Counts(nothing, nothing, nothing))


def _tiles(topics: Sequence[TopicOverview], holders: Answer[list[Holder]]) -> list[Tile]:
    oldest = max((one.oldest_ready_seconds or 0 for one in topics), default=0)
    failed = _total(one.failed for one in topics)
    done, died = (_ended(topics, "last_hour", kind) for kind in ("done", "dead"))
    died_day = _ended(topics, "last_day", "dead")
    return [
        Tile(
            "Ready",
            _total(one.ready for one in topics),
            f"oldest waits {shown.brief(oldest)}" if oldest else "nothing waits",
            "late" if oldest >= LATE else "",
        ),
        Tile("Scheduled", _total(one.scheduled for one in topics), "for a later time"),
        Tile("Retrying", failed, "after a failed attempt"),
        Tile("In flight", _total(one.in_flight for one in topics), _held_by(holders)),
        Tile("Done in the last hour", done, f"{done / 60:,.1f} a minute" if done else ""),
        Tile(
            "Died in the last hour",
            died,
            "" if died_day is None else f"{died_day:,} in the last day",
            "dead" if died else "",
        ),
    ]


def _held_by(holders: Answer[list[Holder]]) -> str:
    if holders.value is None:
        return ""
    if not holders.value:
        return "no worker holds one"
    expired = sum(one.expired for one in holders.value)
    return f"on {counted(len(holders.value), 'worker')}" + (f", {expired:,} ran out" if expired else "")


def _ended(topics: Iterable[TopicOverview], period: str, kind: str) -> int | None:
    counts: Iterable[Mapping[str, int] | None] = (getattr(one, period) for one in topics)
    return _total(None if one is None else one[kind] for one in counts)


def _total(counts: Iterable[int | None]) -> int | None:
    """
    Return the sum, which is unknown if a part of it is.
    """
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
