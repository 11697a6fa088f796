"""
The order of a run: scenario by scenario, and within a scenario all cases and contestants in turns, again and again.

What disturbs a machine for a while thus disturbs all of them alike: figures of one run can be compared, figures of two
runs can't.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.benchmark.contestants import Contestant, Kind
from tests.benchmark.scenarios import Case, Scenario
from tests.benchmark.servers import Lab

PEERS: Final[frozenset[Kind]] = frozenset({"peer", "producer"})


@dataclass(frozen=True)
class Plan:
    """
    What is to be measured.

    Args:
        scenarios: In their order.
        contestants: In the order of their turns.
        repeat: How often each measurement is made.
        scale: Multiplies the sizes.
        wanted: Whether a case is wanted.
    """

    scenarios: Sequence[Scenario]
    contestants: Sequence[Contestant]
    repeat: int = 3
    scale: float = 1.0
    wanted: Callable[[Case], bool] = field(default=lambda _case: True)


@dataclass(frozen=True)
class Result:
    """
    What was measured once; ``error`` says why there are no figures.
    """

    scenario: str
    case: str
    contestant: str
    repetition: int
    figures: dict[str, float]
    seconds: float
    error: str | None = None

    @classmethod
    def read(cls, values: dict[str, Any]) -> Result:
        """
        Return a result that was written as JSON.
        """
        return cls(**values)


def measurements(plan: Plan) -> Iterator[tuple[Scenario, Case, Contestant, int]]:
    """
    Yield what is to be measured, in turns.
    """
    for scenario in plan.scenarios:
        for repetition in range(plan.repeat):
            for case in filter(plan.wanted, scenario.cases()):
                for contestant in plan.contestants:
                    if contestant.kind in scenario.kinds and (case.peers or contestant.kind not in PEERS):
                        yield scenario, case, contestant, repetition


def run(plan: Plan, lab: Lab) -> Iterator[Result]:
    """
    Make all measurements, and yield what came of each. One that fails doesn't end the run.
    """
    for scenario, case, contestant, repetition in measurements(plan):
        began = time.monotonic()
        error = None
        figures: dict[str, float] = {}
        try:
            measured = scenario.measure(lab, contestant, case, plan.scale)
            figures = {name: round(value, 4) for name, value in measured.items() if not math.isnan(value)}
        except Exception as trouble:
            error = f"{type(trouble).__name__}: {trouble}"
        seconds = round(time.monotonic() - began, 1)
        yield Result(scenario.name, case.name, contestant.name, repetition, figures, seconds, error)
