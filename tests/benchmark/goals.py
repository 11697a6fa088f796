"""
What the library set out to reach, and what the published series says of it.

A goal is a figure, or the quotient of two that were measured in the same repetition, and two limits: one that must
hold, and one that was aimed at. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.benchmark.report import pick, quotients
from tests.benchmark.runner import Result

ASYNC: Final = "ours, async"
THREADS: Final = "ours, threads"
BARE: Final = "bare SQL"
PGQUEUER: Final = "pgqueuer, asyncpg"


@dataclass(frozen=True)
class Point:
    """
    A figure of the series.
    """

    scenario: str
    case: str
    contestant: str
    figure: str = "jobs/s"


@dataclass(frozen=True)
class Goal:
    """
    What a figure is to be.

    Args:
        text: What it is about.
        own: The figure.
        base: What it is divided by, if it is a quotient.
        must: The limit that has to hold.
        goal: The one that was aimed at.
        less: Whether less is better.
        unit: Of a figure that is no quotient.
        reason: Where it stands why a goal is missed, as a link within the page.
    """

    text: str
    own: Point
    base: Point | None = None
    must: float | None = None
    goal: float | None = None
    less: bool = False
    unit: str = ""
    reason: str = "[where the time goes](#where-the-time-goes)"

    def measured(self, results: Sequence[Result]) -> float | None:
        """
        Return what was measured; ``None`` if it wasn't.
        """
        own = _figures(results, self.own)
        if self.base is None:
            values: Sequence[float] = [
                figures[self.own.figure] for figures in own.values() if self.own.figure in figures
            ]
        else:
            values = quotients(own, _figures(results, self.base), self.own.figure, self.base.figure)
        return median(values) if values else None

    def holds(self, value: float, limit: float | None) -> bool:
        """
        Whether *value*, as it is shown, keeps to *limit*.
        """
        if limit is None:
            return True
        shown = round(value, self.digits)
        return shown <= limit if self.less else shown >= limit

    @property
    def digits(self) -> int:
        """
        How many are shown behind the point.
        """
        largest = max(limit for limit in (self.must, self.goal, 0.0) if limit is not None)
        return 2 if largest < 2.5 else 1 if largest < 200 else 0

    def verdict(self, value: float) -> str:
        """
        Return what is to be said of *value*, with the place that explains what is missed.
        """
        if not self.holds(value, self.must):
            return f"**the must is missed**: {self.reason}"
        return "reached" if self.holds(value, self.goal) else f"goal missed: {self.reason}"

    def limit(self, value: float | None) -> str:
        """
        Return a limit as text.
        """
        if value is None:
            return ""
        return f"{'≤' if self.less else '≥'} {value:,g}{self.unit}"


def _figures(results: Sequence[Result], point: Point) -> dict[int, dict[str, float]]:
    own = [one for one in results if one.scenario == point.scenario]
    return {turn: dict(figures) for turn, figures in pick(own, point.case, point.contestant).items()}


def _queues(case: str, contestant: str) -> Point:
    return Point("queues", case, contestant)


def _slots(count: str, contestant: str) -> Point:
    return Point("drain", f"{count}, 1 process", contestant)


def _enqueued(contestant: str, case: str = "queue.enqueue") -> Point:
    return Point("single", case, contestant)


def _bulk(contestant: str, figure: str = "jobs/s") -> Point:
    return Point("bulk", "without keys", contestant, figure)


ENQUEUING: Final = "[what an enqueue costs](#what-an-enqueue-costs)"
LOCK: Final = "[the interpreter's lock](#where-the-time-goes)"
LOG: Final = "[what a job writes](#what-a-job-writes)"


def _drains() -> Iterator[Goal]:
    one, two = "1 process", "2 processes"
    by, fastest = "÷ pgqueuer on asyncpg", _queues(one, PGQUEUER)
    hundred = _queues(one, "bare SQL, 100 rows")
    yield Goal(f"drain, `async def` {by}", _queues(one, ASYNC), fastest, 1.2, 1.5)
    yield Goal("drain, `async def` ÷ bare SQL, 100 rows at a time", _queues(one, ASYNC), hundred, goal=1.0)
    yield Goal(f"drain, plain handlers on 8 threads {by}", _queues(one, THREADS), fastest, 1.2, 2, reason=LOCK)
    for count in ("10 slots", "1 slot"):
        for contestant, kind in ((ASYNC, "`async def`"), (THREADS, "plain handlers")):
            text = f"drain, {count}, {kind} ÷ bare SQL"
            yield Goal(text, _slots(count, contestant), _slots(count, BARE), 0.6, 0.9, reason=LOCK)
    yield Goal(f"drain, two processes {by}", _queues(two, ASYNC), _queues(two, PGQUEUER), 1.1, 1.3)


def _enqueues() -> Iterator[Goal]:
    fastest, built, session = _bulk(PGQUEUER), _bulk(ASYNC, "jobs/s with construction"), "session.add, commit"
    bulk, one, added = "bulk enqueue, jobs that are there", "`queue.enqueue`", "`session.add` and a commit"
    yield Goal(f"{bulk} ÷ pgqueuer on asyncpg", _bulk(ASYNC), fastest, must=1.0, reason=ENQUEUING)
    yield Goal(f"{bulk} ÷ awa", _bulk(ASYNC), _bulk("awa"), goal=1.2, reason=ENQUEUING)
    yield Goal(
        "bulk enqueue, with their construction ÷ pgqueuer on asyncpg", built, fastest, goal=1.0, reason=ENQUEUING
    )
    yield Goal(f"{one} ÷ oban", _enqueued(ASYNC), _enqueued("oban"), must=1.0, reason=ENQUEUING)
    yield Goal(f"{one} ÷ bare SQL", _enqueued(ASYNC), _enqueued(BARE), goal=0.75, reason=ENQUEUING)
    yield Goal(f"{added} ÷ beanqueue", _enqueued(ASYNC, session), _enqueued("beanqueue"), must=1.3, reason=ENQUEUING)
    yield Goal(f"{added} ÷ chancy", _enqueued(ASYNC, session), _enqueued("chancy"), goal=1.0, reason=ENQUEUING)


def _pickups() -> Iterator[Goal]:
    for figure, must, goal in (("p50 ms", 2.0, 1.4), ("p99 ms", 6.0, 4.0)):
        point = Point("pickup", "10 jobs/s", ASYNC, figure)
        yield Goal(f"pickup, default settings, {figure[:3]}", point, None, must, goal, less=True, unit=" ms")


def _surroundings() -> Iterator[Goal]:
    free = "an empty table"
    past = Point("history", "1,000,000 terminal rows", ASYNC)
    yield Goal("drain with a million terminal rows ÷ without", past, Point("history", free, ASYNC), 0.9, 0.97)
    for case, text in (
        ("1,000,000 older rows of 50 other topics", "time of a job behind a million rows of other topics ÷ without"),
        ("1,000,000 future rows", "time of a job beside a million future rows ÷ without"),
    ):
        # The other way round: what a job takes is the inverse of its rate.
        yield Goal(text, Point("backlog", free, ASYNC), Point("backlog", case, ASYNC), 3, 1.5, less=True)
    held, none = Point("snapshot", "a held snapshot", ASYNC), Point("snapshot", "no snapshot", ASYNC)
    yield Goal("drain of 300,000 jobs under a held snapshot ÷ none held", held, none, 0.8, 0.95)


def _resources() -> Iterator[Goal]:
    wal = Point("wal", "enqueued in bulk, 200 slots", ASYNC, "in + run B/job")
    yield Goal("WAL of a job, enqueued and run", wal, None, 1_600, 1_250, less=True, unit=" B", reason=LOG)
    idle = Point("idle", "1 worker", ASYNC, "statements/s")
    yield Goal("statements a second of an idle worker", idle, None, 2, 1, less=True)
    growth = Point("memory", "1,000,000 jobs", ASYNC, "growth MB")
    yield Goal("memory: growth from the 100,000th job to the millionth", growth, None, 10, 10, less=True, unit=" MB")
    held = Point("memory", "1,000,000 jobs", ASYNC, "MB after 1,000,000 jobs")
    yield Goal("memory after a million jobs", held, None, goal=150, less=True, unit=" MB")


GOALS: Final[Sequence[Goal]] = (*_drains(), *_enqueues(), *_pickups(), *_surroundings(), *_resources())


def rows(results: Sequence[Result]) -> Iterator[Sequence[str]]:
    """
    Yield the cells of the table of goals.
    """
    for goal in GOALS:
        value = goal.measured(results)
        if value is None:
            yield goal.text, goal.limit(goal.must), goal.limit(goal.goal), "not measured", ""
        else:
            shown = f"{value:,.{goal.digits}f}{goal.unit}"
            yield goal.text, goal.limit(goal.must), goal.limit(goal.goal), shown, goal.verdict(value)
