"""
A drain of one topic with a million rows in the table that are none of the worker's business: other topics, and later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.benchmark.contestants import Kind
from tests.benchmark.scenarios.surroundings import Among, Surroundings


class Backlog(Among):
    """
    What a backlog costs that others are to run. Bare SQL has no topics.
    """

    name = "backlog"
    title = "Drain beside a backlog of 1,000,000 rows"
    kinds: frozenset[Kind] = frozenset({"async"})
    surroundings: ClassVar[Sequence[Surroundings]] = (
        Surroundings("an empty table"),
        Surroundings("1,000,000 older rows of 50 other topics", "an empty table", {"others": 1_000_000}),
        Surroundings("1,000,000 future rows", "an empty table", {"future": 1_000_000}),
    )
