"""
Figures as text: what a run was made with, and a table for each scenario, in Markdown.

Knows results and what the scenarios are called; measures nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final

from tests.benchmark.contestants import Contestant
from tests.benchmark.environments import CannotBeMade
from tests.benchmark.runner import Plan, Result
from tests.benchmark.scenarios import Figure, Scenario
from tests.benchmark.servers import Lab

YARDSTICKS: Final = ("bare SQL", "pgqueuer, asyncpg")
"""Whom the others are divided by, where they take part."""


def about(contestants: Iterable[Contestant], plans: Sequence[Plan], lab: Lab) -> dict[str, str]:
    """
    Return what a reader has to know to judge the figures.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **_versions(contestants),
        **{"PostgreSQL" if name == "server_version" else name: value for name, value in lab.settings().items()},
        "repetitions": _distinct(f"{plan.repeat}" for plan in plans),
        "scale": _distinct(f"{plan.scale:g}" for plan in plans),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _versions(contestants: Iterable[Contestant]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for contestant in contestants:
        try:
            found |= contestant.versions()
        except CannotBeMade as trouble:
            found[contestant.name] = f"can't take part: {trouble}"
    return found


def _distinct(values: Iterable[str]) -> str:
    found = sorted(set(values), key=float)
    return " to ".join(dict.fromkeys([*found[:1], *found[-1:]]))


def tables(facts: Mapping[str, str], results: Sequence[Result], scenarios: Mapping[str, Scenario]) -> Iterator[str]:
    """
    Yield the lines of the report.
    """
    yield ", ".join(f"{name} {value}" for name, value in facts.items())
    for name, scenario in scenarios.items():
        own = [result for result in results if result.scenario == name]
        if own:
            yield from ("", f"### {scenario.title}", "")
            yield from table(scenario, own)
            yield from errors(own)


def errors(results: Sequence[Result]) -> Iterator[str]:
    """
    Yield a line for each measurement that failed, once.
    """
    yield from dict.fromkeys(f"- {one.contestant}, {one.case}: {one.error}" for one in results if one.error)


def table(scenario: Scenario, results: Sequence[Result]) -> Iterator[str]:
    """
    Yield the lines of a scenario's table.
    """
    against = {case.name: case.against for case in scenario.cases()}
    measured = {one.case for one in results}
    yardsticks = [name for name in YARDSTICKS if any(one.contestant == name for one in results)]
    bases = [*dict.fromkeys(base for case, base in against.items() if base in measured and case in measured)]
    first = scenario.figures[0]
    head = ["", "", *(figure.name for figure in scenario.figures), *(f"÷ {name}" for name in yardsticks + bases)]
    yield _row(head)
    yield "|---|---|" + "--:|" * (len(head) - 2)
    for case, contestant in dict.fromkeys((one.case, one.contestant) for one in _in_order(results, list(against))):
        own = pick(results, case, contestant)
        cells = [case, contestant, *(spread(own, figure) for figure in scenario.figures)]
        cells += ["" if contestant == name else _ratio(own, pick(results, case, name), first) for name in yardsticks]
        cells += [
            _ratio(own, pick(results, base, contestant), first) if against.get(case) == base else "" for base in bases
        ]
        yield _row(cells)


def _in_order(results: Sequence[Result], cases: Sequence[str]) -> Sequence[Result]:
    return sorted(results, key=lambda one: cases.index(one.case) if one.case in cases else len(cases))


def pick(results: Sequence[Result], case: str, contestant: str) -> dict[int, Mapping[str, float]]:
    """
    Return the figures of a contestant's case, by the repetition.
    """
    return {
        one.repetition: one.figures
        for one in results
        if (one.case, one.contestant) == (case, contestant) and not one.error
    }


def spread(own: Mapping[int, Mapping[str, float]], figure: Figure) -> str:
    """
    Return the median of a figure, and what lies around it.
    """
    values = [figures[figure.name] for figures in own.values() if figure.name in figures]
    return _summary(values, lambda value: f"{value:,.{figure.digits}f}")


def _ratio(own: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]], figure: Figure) -> str:
    """
    Return the quotient, and what lies around it.
    """
    return _summary(quotients(own, other, figure.name, figure.name), lambda value: f"{value:.2f}")


def quotients(
    own: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]], figure: str, base: str
) -> list[float]:
    """
    Return the quotients of two figures, each of what was measured in the same repetition.
    """
    pairs = [(own[turn].get(figure), other[turn].get(base)) for turn in own if turn in other]
    return [upper / lower for upper, lower in pairs if upper is not None and lower]


def _summary(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """
    Return the median, and what lies around it.
    """
    if not values:
        return "-"
    middle = shown(median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))} to {shown(max(values))})"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
