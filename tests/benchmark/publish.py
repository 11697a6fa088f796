"""
The series that the documentation shows: which parts of the benchmark it has, with whom, and how often.

It fits into a quarter of an hour of a quiet machine. `page` makes text of what it yields.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmark.contestants import Contestant, find
from tests.benchmark.runner import Plan
from tests.benchmark.scenarios import Case, everything

PEERS: Final = (
    "peers:pgqueuer-asyncpg",
    "peers:pgqueuer-psycopg",
    "peers:chancy",
    "peers:oban",
    "peers:beanqueue",
    "peers:procrastinate",
)
FASTEST: Final = "peers:pgqueuer-asyncpg"


@dataclass(frozen=True)
class Part:
    """
    A scenario of the series.

    Args:
        scenario: Its name.
        contestants: Who takes part.
        repeat: How often.
        cases: Texts of which one is in the name of each case; all cases, if there are none.
        scale: Multiplies the sizes.
    """

    scenario: str
    contestants: Sequence[str]
    repeat: int
    cases: Sequence[str] = ()
    scale: float = 1.0

    def command(self) -> str:
        """
        Return the command that measures this part alone.
        """
        words = ["python", "-m", "tests.benchmark", "--only", self.scenario, "--repeat", str(self.repeat)]
        words += [word for case in self.cases for word in ("--case", case)]
        words += ["--scale", f"{self.scale:g}"] * (self.scale != 1)
        words += [word for spec in self.contestants for word in ("--contestant", spec)]
        return shlex.join(words)

    def plan(self, scale: float = 1.0, most: int | None = None) -> Plan:
        """
        Return the plan of this part, with all sizes multiplied once more, and *most* repetitions at most.
        """

        def wanted(case: Case) -> bool:
            return not self.cases or any(text in case.name for text in self.cases)

        contestants = [find(spec) for spec in self.contestants]
        repeat = self.repeat if most is None else min(self.repeat, most)
        return Plan([everything()[self.scenario]], contestants, repeat, self.scale * scale, wanted)


OURS: Final = ("ours:async", "ours:threads")

PARTS: Final[Mapping[str, Part]] = {
    part.scenario: part
    for part in (
        Part("queues", (*OURS, "bare:100", "bare", *PEERS), 3),
        Part("bulk", ("ours:async", "bare", *PEERS, "peers:awa"), 3, ["without keys"]),
        Part("single", ("ours:async", "bare", *PEERS), 3),
        Part("pickup", ("ours:async", "bare", *PEERS), 1, ["10 jobs/s"], 0.6),
        Part("flow", (*OURS, "bare", FASTEST, "peers:chancy", "peers:oban"), 1),
        Part("drain", (*OURS, "bare"), 7, ["10 slots, 1 process", "1 slot, 1 process"], 0.5),
        Part("handlers", (*OURS, FASTEST), 1),
        Part("retries", OURS, 1),
        Part("commits", ("ours:async", "bare", FASTEST, "peers:oban"), 1),
        Part("chains", ("ours:async",), 1),
        Part("command", ("ours:command",), 2),
        Part("history", ("ours:async",), 2),
        Part("backlog", ("ours:async",), 1),
        Part("snapshot", ("ours:async",), 1),
        Part("wal", ("ours:async",), 1),
        Part("idle", ("ours:async",), 1, ["1 worker"], 0.5),
        Part("memory", ("ours:async",), 1),
    )
}


def contestants() -> Iterator[Contestant]:
    """
    Yield everybody who takes part, once.
    """
    for spec in dict.fromkeys(spec for part in PARTS.values() for spec in part.contestants):
        yield find(spec)
