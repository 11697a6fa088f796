"""
The published figures as parts of docs/performance.md.

Between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->`` stands what `rendered` puts there, from the
results in docs/performance/figures.json; the rest of the page is written by hand. Measures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmark import goals
from tests.benchmark.contestants.peers import SETUPS
from tests.benchmark.publish import PARTS
from tests.benchmark.report import errors, pick, spread, table
from tests.benchmark.runner import Result
from tests.benchmark.scenarios import Figure, everything

PAGE: Final = Path(__file__).parents[2] / "docs" / "performance.md"
FIGURES: Final = PAGE.parent / "performance" / "figures.json"

_BLOCK: Final = re.compile(
    r"(?P<begin><!-- figures: (?P<name>\w+) -->\n).*?(?P<end><!-- end of figures -->)", re.DOTALL
)


@dataclass(frozen=True)
class Column:
    """
    A column of the table of all queues: its head, and which figures stand below it.
    """

    head: str
    scenario: str
    case: str
    figures: Sequence[Figure]

    def cell(self, results: Sequence[Result], contestant: str) -> str:
        own = pick([one for one in results if one.scenario == self.scenario], self.case, contestant)
        return " / ".join(spread(own, figure) for figure in self.figures) if own else ""


_RATE: Final = (Figure("jobs/s"),)
_WAITS: Final = (Figure("p50 ms", 1), Figure("p99 ms", 1))
OVERVIEW: Final = (
    Column("bulk enqueue, jobs/s", "bulk", "without keys", _RATE),
    Column("single enqueue, jobs/s", "single", "queue.enqueue", _RATE),
    Column("drain, 1 process, jobs/s", "queues", "1 process", _RATE),
    Column("drain, 2 processes, jobs/s", "queues", "2 processes", _RATE),
    Column("pickup at 10 jobs/s, p50 / p99 ms", "pickup", "10 jobs/s", _WAITS),
    Column("WAL of a drain, B/job", "queues", "1 process", (Figure("WAL B/job"),)),
)
AS_OBJECTS: Final = (
    Column("", "bulk", "without keys", (Figure("jobs/s with construction"),)),
    Column("", "single", "session.add, commit", _RATE),
)
"""What stands in the first columns of a second row of ours."""
SERIOUS: Final = 0.5
"""The scale below which a series says little."""
OVERVIEW_PARTS: Final = ("queues", "bulk", "single", "pickup")


def rendered(text: str, document: Mapping[str, Any]) -> str:
    """
    Return the page *text* with all its figures as they are in *document*.

    Raises:
        ValueError: The page asks for figures that nobody knows.
    """

    def put(match: re.Match[str]) -> str:
        return f"{match['begin']}\n{section(match['name'], document)}\n\n{match['end']}"

    return _BLOCK.sub(put, text)


def section(name: str, document: Mapping[str, Any]) -> str:
    """
    Return the figures called *name*: those of a scenario, or one of `SECTIONS`.
    """
    results = [Result.read(values) for values in document["results"]]
    if name in SECTIONS:
        return "\n".join(SECTIONS[name](document["about"], results))
    if name not in PARTS:
        raise ValueError(f"{name!r} is no part of the published series: there are {', '.join((*SECTIONS, *PARTS))}")
    return "\n".join(_scenario(name, results))


def _scenario(name: str, results: Sequence[Result]) -> Iterator[str]:
    own = [one for one in results if one.scenario == name]
    yield from table(everything()[name], own) if own else ("Not measured in this series.",)
    if failed := [*errors(own)]:
        yield from ("", *failed)
    yield from ("", *_command(PARTS[name].command()))


def _command(command: str) -> Iterator[str]:
    """
    Yield what tells how to see a table of one's own.
    """
    yield from ("<!-- not run: it measures -->", "```shell", command, "```")


def _about(about: Mapping[str, str], _results: Sequence[Result]) -> Iterator[str]:
    own = {name: value for name, value in about.items() if not name.startswith("beside ")}
    yield "; ".join(f"{name} {value}" for name, value in own.items()) + "."
    if float(about["scale"].split(" to ")[-1]) < SERIOUS:
        yield from (
            "",
            "**This was a look around, at a small scale: its figures show the form of this page only.**",
        )


def _peers(about: Mapping[str, str], _results: Sequence[Result]) -> Iterator[str]:
    yield "| queue | version | beside it | set for a drain, and why |"
    yield "|---|---|---|---|"
    for setup in SETUPS.values():
        version = about.get(setup.shown[0], about.get(setup.label, "-"))
        yield _row([setup.label, version, about.get(f"beside {setup.label}", "-"), setup.settings])


def _overview(_about: Mapping[str, str], results: Sequence[Result]) -> Iterator[str]:
    yield _row(["queue", *(column.head for column in OVERVIEW)])
    yield f"|---|{'--:|' * len(OVERVIEW)}"
    for contestant in dict.fromkeys(one.contestant for one in results if one.scenario in {"queues", "bulk"}):
        yield _row([contestant, *(column.cell(results, contestant) for column in OVERVIEW)])
        if contestant == goals.ASYNC:
            cells = [column.cell(results, contestant) for column in AS_OBJECTS]
            yield _row([f"{contestant}: objects made, and added", *cells, *[""] * (len(OVERVIEW) - len(cells))])
    if failed := [*errors([one for one in results if one.scenario in OVERVIEW_PARTS])]:
        yield from ("", *failed)
    only = " ".join(f"--only {name}" for name in OVERVIEW_PARTS)
    yield from ("", *_command(f"python -m tests.benchmark publish {only} --json figures.json"))


def _goals(_about: Mapping[str, str], results: Sequence[Result]) -> Iterator[str]:
    yield "| | must | goal | measured | |"
    yield "|---|--:|--:|--:|---|"
    yield from map(_row, goals.rows(results))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


Section = Callable[[Mapping[str, str], Sequence[Result]], Iterator[str]]

SECTIONS: Final[Mapping[str, Section]] = {"about": _about, "peers": _peers, "overview": _overview, "goals": _goals}
