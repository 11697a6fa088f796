"""
What is measured: a module for each scenario, and what they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.servers import Lab


@dataclass(frozen=True)
class Case:
    """
    One form of a scenario: a row of its table.

    Args:
        name: As it stands in the table.
        against: The name of the case that this one is divided by.
        peers: Whether other queues take part.
    """

    name: str
    against: str | None = None
    peers: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Figure:
    """
    What a scenario measures: a column of its table.

    Args:
        name: As it stands in the table, with its unit.
        digits: How many are shown behind the point.
    """

    name: str
    digits: int = 0


class Scenario(Protocol):
    """
    A measurement, and the forms that it has.
    """

    name: str
    """For the command line, and the JSON."""
    title: str
    kinds: frozenset[Kind]
    """Which contestants it is for."""
    figures: Sequence[Figure]
    """The first one is the one that is compared."""

    def cases(self) -> Sequence[Case]:
        """
        Return its forms, in the order in which they take turns.
        """

    def measure(self, lab: Lab, contestant: Contestant, case: Case, scale: float) -> Mapping[str, float]:
        """
        Measure once, and return the figures by their names; NaN is one that there isn't.

        Args:
            lab: Where.
            contestant: What.
            case: In which form.
            scale: Multiplies the sizes, which are meant for two cores of today.
        """


def scaled(count: int, scale: float, *, least: int = 20) -> int:
    """
    Return *count* at *scale*.
    """
    return max(round(count * scale), least)


def everything() -> dict[str, Scenario]:
    """
    Return all scenarios by their names.
    """
    from tests.benchmark.scenarios import (
        backlog,
        bulk,
        chains,
        command,
        commits,
        drain,
        flow,
        handlers,
        history,
        idle,
        memory,
        pickup,
        queues,
        retries,
        single,
        snapshot,
        wal,
    )

    found: list[Scenario] = [
        queues.Queues(),
        drain.Drain(),
        pickup.Pickup(),
        flow.Flow(),
        bulk.Bulk(),
        single.Single(),
        handlers.Handlers(),
        retries.Retries(),
        commits.Commits(),
        chains.Chains(),
        command.Command(),
        history.History(),
        backlog.Backlog(),
        snapshot.Snapshot(),
        wal.Wal(),
        idle.Idle(),
        memory.Memory(),
    ]
    return {scenario.name: scenario for scenario in found}
