"""
Whose turn it is: the order in which a claim asks for topics and priorities (invariant 10).

Pure bookkeeping of one pump; knows no SQL and no thread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy_brooq.vocabulary import PRIORITIES


class Branch(NamedTuple):
    """
    A part of a request: from one topic at one priority up to `limit` jobs, after its first `skip` ones.
    """

    priority: int
    topic: str
    skip: int
    limit: int


@dataclass(frozen=True, slots=True)
class Request:
    """
    What a claim asks for: up to ``want`` jobs, from the branches in their order.
    """

    want: int
    branches: Sequence[Branch]


class Turns:
    """
    Lets the topics of one priority take turns.

    Within each priority the topics stand in a circle, and a claim begins after the one that was served last.
    First each may give its share of the free slots; what is still free then goes to whoever has more, and
    only what is free after that to the next lower priority. So neither a busy topic can starve another
    one of its priority, nor does a share that nobody needs stay empty.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = sorted(topics)
        self._starts = dict.fromkeys(PRIORITIES, 0)

    def request(self, want: int) -> Request:
        """
        Return what to ask for when *want* slots are free.
        """
        return Request(want, [branch for priority in reversed(PRIORITIES) for branch in self._branches(priority, want)])

    def learn(self, claimed: Iterable[tuple[int, str]]) -> None:
        """
        Take note of whom a claim served: the priority and topic of each job.
        """
        served: dict[int, set[str]] = {}
        for priority, topic in claimed:
            served.setdefault(priority, set()).add(topic)
        for priority, topics in served.items():
            last = [topic for topic in self._circle(priority) if topic in topics][-1]
            self._starts[priority] = (self._topics.index(last) + 1) % len(self._topics)

    def _branches(self, priority: int, want: int) -> Iterator[Branch]:
        circle = self._circle(priority)
        share = max(1, math.ceil(want / len(circle)))
        for topic in circle:
            yield Branch(priority, topic, 0, share)
        if share < want:
            for topic in circle:
                yield Branch(priority, topic, share, want - share)

    def _circle(self, priority: int) -> list[str]:
        start = self._starts[priority]
        return self._topics[start:] + self._topics[:start]
