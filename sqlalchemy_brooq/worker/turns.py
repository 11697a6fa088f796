"""
Whose turn it is: the order in which a claim asks for topics and priorities (invariant 10).

Pure bookkeeping of one pump; knows no SQL and no thread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy_brooq.vocabulary import PRIORITIES

BELIEVED: Final = 1.0
"""Seconds for which the last answer is believed about how many topics have work."""


class Branch(NamedTuple):
    """
    One topic at one priority.
    """

    priority: int
    topic: str


@dataclass(frozen=True, slots=True)
class Request:
    """
    What a claim asks for: up to ``want`` jobs, from each branch in turn at most ``share``.
    """

    want: int
    share: int
    branches: Sequence[Branch]


class Turns:
    """
    Lets the topics of one priority take turns, and keeps a lone busy topic at full speed.

    Within each priority the topics stand in a circle, and a claim begins after the one that was served
    last. How many jobs one topic may give (``share``) follows from how many topics had work the last
    time; where that turns out too few, `learn` says that there is more to ask for at once.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = sorted(topics)
        self._starts = dict.fromkeys(PRIORITIES, 0)
        self._active = len(self._topics)
        self._learned = -math.inf

    def request(self, want: int, now: float) -> Request:
        """
        Return what to ask for when *want* slots are free.
        """
        if now - self._learned > BELIEVED:
            self._active = len(self._topics)
        share = max(1, math.ceil(want / max(self._active, 1)))
        branches = [Branch(priority, topic) for priority in reversed(PRIORITIES) for topic in self._circle(priority)]
        return Request(want, share, branches)

    def learn(self, request: Request, claimed: Iterable[Branch], now: float) -> bool:
        """
        Take note of what a claim brought; True if there may be more where it came from.
        """
        counts: dict[Branch, int] = {}
        for branch in claimed:
            counts[branch] = counts.get(branch, 0) + 1
        for priority in {branch.priority for branch in counts}:
            served = [topic for topic in self._circle(priority) if Branch(priority, topic) in counts]
            self._starts[priority] = (self._topics.index(served[-1]) + 1) % len(self._topics)
        full = any(count >= request.share for count in counts.values())
        self._active = len({branch.topic for branch in counts}) if full else len(self._topics)
        self._learned = now
        return full or sum(counts.values()) >= request.want

    def _circle(self, priority: int) -> list[str]:
        start = self._starts[priority]
        return self._topics[start:] + self._topics[:start]
