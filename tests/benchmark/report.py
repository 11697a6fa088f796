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

from tests.benchmark.contestants import Contestant
from tests.benchmark.runner import Plan, Result
from tests.benchmark.scenarios import Figure, Scenario
from tests.benchmark.servers import Lab

YARDSTICK = "bare SQL"


def about(plan: Plan, lab: Lab) -> dict[str, str]:
    """
    Return what a reader has to know to judge the figures.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **_versions(plan.contestants),
        **{"PostgreSQL" if name == "server_version" else name: value for name, value in lab.settings().items()},
        "repetitions": str(plan.repeat),
        "scale": f"{plan.scale:g}",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _versions(contestants: Iterable[Contestant]) -> Mapping[str, str]:
    return {name: version for contestant in contestants for name, version in contestant.versions().items()}


def tables(facts: Mapping[str, str], results: Sequence[Result], scenarios: Mapping[str, Scenario]) -> Iterator[str]:
    """
    Yield the lines of the report.
    """
    yield ", ".join(f"{name} {value}" for name, value in facts.items())
    for name, scenario in scenarios.items():
        own = [result for result in results if result.scenario == name]
        if own:
            yield from ("", f"### {scenario.title}", "")
            yield from _table(scenario, own)
            yield from (f"- {one.contestant}, {one.case}: {one.error}" for one in own if one.error)


def _table(scenario: Scenario, results: Sequence[Result]) -> Iterator[str]:
    against = {case.name: case.against for case in scenario.cases()}
    bare = any(one.contestant == YARDSTICK for one in results)
    first = scenario.figures[0]
    head = ["", "", *(figure.name for figure in scenario.figures)]
    head += [f"÷ {YARDSTICK}"] * bare + ["÷ " + name for name in dict.fromkeys(filter(None, against.values()))]
    yield _row(head)
    yield "|---|---|" + "--:|" * (len(head) - 2)
    for case, contestant in dict.fromkeys((one.case, one.contestant) for one in _in_order(results, list(against))):
        own = _pick(results, case, contestant)
        cells = [case, contestant, *(_spread(own, figure) for figure in scenario.figures)]
        if bare:
            cells.append(_ratio(own, _pick(results, case, YARDSTICK), first) if contestant != YARDSTICK else "")
        base = against.get(case)
        if any(against.values()):
            cells.append(_ratio(own, _pick(results, base, contestant), first) if base else "")
        yield _row(cells)


def _in_order(results: Sequence[Result], cases: Sequence[str]) -> Sequence[Result]:
    return sorted(results, key=lambda one: cases.index(one.case) if one.case in cases else len(cases))


def _pick(results: Sequence[Result], case: str, contestant: str) -> dict[int, Mapping[str, float]]:
    return {
        one.repetition: one.figures
        for one in results
        if (one.case, one.contestant) == (case, contestant) and not one.error
    }


def _spread(own: Mapping[int, Mapping[str, float]], figure: Figure) -> str:
    values = [figures[figure.name] for figures in own.values() if figure.name in figures]
    return _summary(values, lambda value: f"{value:,.{figure.digits}f}")


def _ratio(own: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]], figure: Figure) -> str:
    """
    Return the quotient, of what was measured in the same repetition.
    """
    pairs = [(own[turn][figure.name], other[turn][figure.name]) for turn in own if turn in other]
    return _summary([value / base for value, base in pairs if base], lambda value: f"{value:.2f}")


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
