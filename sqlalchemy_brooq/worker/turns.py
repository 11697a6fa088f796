"""
Whose turn it is: the order in which a claim asks for topics and priorities (invariant 10), and where it begins.

Pure bookkeeping of one worker; knows no SQL and no thread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import PRIORITIES

FEW: Final = 4
"""Up to so many topics are asked for at each priority, without a look at whether anything is ready there."""

Mark = tuple[datetime, UUID]
"""The ``available_at`` and ``id`` of the last row that was claimed."""


class Branch(NamedTuple):
    """
    A part of a request: from one topic at one priority up to `limit` jobs, after its first `skip` ones.
    """

    priority: int
    topic: str
    limit: int
    skip: int
    after: Mark | None
    """Where to begin; ``None`` is the very left."""


@dataclass(frozen=True, slots=True)
class Request:
    """
    What a claim asks for: up to ``want`` jobs, from the branches in their order.
    """

    want: int
    branches: Sequence[Branch]
    sure: Sequence[bool]
    """For each priority from the highest, whether to ask there without looking first if anything is ready."""
    from_left: bool
    """Whether it begins at the left, not where earlier claims ended."""


class Turns:
    """
    Lets the topics of one priority take turns.

    Within each priority the topics stand in a circle, and a claim begins after the one that was served last.
    First each may give its share of the free slots; what is still free then goes to whoever has more, and
    only what is free after that to the next lower priority. So neither a busy topic can starve another
    one of its priority, nor does a share that nobody needs stay empty.

    Remembers, too, where claims ended: the entries of an index that lie before it are dead, and a claim that begins
    at the left walks over each of them for as long as some old snapshot holds vacuum back.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = sorted(topics)
        self._starts = dict.fromkeys(PRIORITIES, 0)
        self._marks: dict[tuple[int, str], Mark] = {}
        self._latest: Request | None = None
        self._before = self._starts
        """Where the latest request began."""

    def request(self, want: int, *, from_left: bool = True) -> Request:
        """
        Return what to ask for when *want* slots are free.
        """
        branches = [one for priority in reversed(PRIORITIES) for one in self._branches(priority, want, from_left)]
        request = Request(want, branches, [self._is_sure(one, from_left) for one in reversed(PRIORITIES)], from_left)
        self._latest, self._before = request, dict(self._starts)
        self._expect(want)
        return request

    def learn(self, request: Request, claims: Iterable[Claim]) -> None:
        """
        Take note of whom *request* served: its claims, in their running order.
        """
        last = {(claim.priority, claim.topic): claim for claim in claims}
        for kind, claim in last.items():
            mark = (claim.available_at, claim.id)
            if request.from_left or kind not in self._marks or mark > self._marks[kind]:
                self._marks[kind] = mark
        if request is self._latest:  # otherwise a later one went on from where this was expected to end
            self._move_on(last)

    def forget(self) -> None:
        """
        Begin at the left again.
        """
        self._marks.clear()

    def _branches(self, priority: int, want: int, from_left: bool) -> Iterator[Branch]:
        circle = self._circle(priority)
        share = max(1, math.ceil(want / len(circle)))
        marks = {} if from_left else self._marks
        for topic in circle:
            yield Branch(priority, topic, share, 0, marks.get((priority, topic)))
        if share < want:
            for topic in circle:
                yield Branch(priority, topic, want - share, share, marks.get((priority, topic)))

    def _is_sure(self, priority: int, from_left: bool) -> bool:
        # Where claims have just ended, dead entries may lie before the first that is alive.
        return len(self._topics) <= FEW or (not from_left and any(marked == priority for marked, _ in self._marks))

    def _expect(self, want: int) -> None:
        """
        Let a request that is made before this one's answer begin where this one ends, if all have something.
        """
        served = math.ceil(want / max(1, math.ceil(want / len(self._topics))))
        for priority in PRIORITIES:
            self._starts[priority] = (self._starts[priority] + served) % len(self._topics)

    def _move_on(self, kinds: Collection[tuple[int, str]]) -> None:
        """
        Begin after the last topic that was served at its priority; where nothing was, where this request began.
        """
        self._starts = dict(self._before)
        for priority in {priority for priority, _ in kinds}:
            last = [topic for topic in self._circle(priority) if (priority, topic) in kinds][-1]
            self._starts[priority] = (self._topics.index(last) + 1) % len(self._topics)

    def _circle(self, priority: int) -> list[str]:
        start = self._starts[priority]
        return self._topics[start:] + self._topics[:start]
