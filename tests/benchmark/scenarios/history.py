"""
A drain with a million jobs in the table that are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.benchmark.scenarios.surroundings import Among, Surroundings


class History(Among):
    """
    What history costs.
    """

    name = "history"
    title = "Drain with 1,000,000 jobs that are over"
    surroundings: ClassVar[Sequence[Surroundings]] = (
        Surroundings("an empty table"),
        Surroundings("1,000,000 terminal rows", "an empty table", {"finished": 1_000_000}),
    )
