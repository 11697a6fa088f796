"""
The published figures as charts, SVG for the documentation and PNG for wherever SVG isn't shown.

Drawn in colours that can be read on white and on black, on no ground of their own. The same figures give the same SVG,
byte for byte. Needs matplotlib, from the dependency group ``charts``; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tests.benchmark import goals
from tests.benchmark.report import pick, quotients
from tests.benchmark.runner import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK: Final = "#7a808a"
OURS: Final = ("#2f81f7", "#8ab8f5")
OTHERS: Final = ("#c2703d", "#dba981")
YARDSTICK: Final = ("#7a808a", "#adb2ba")
STYLE: Final[Any] = {  # whose keys matplotlib has a type of
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "svg.fonttype": "none",
    "svg.hashsalt": "sqlalchemy-brooq",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.titlecolor": INK,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Bar:
    """
    A value with what lies around it.
    """

    label: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, label: str, values: Sequence[float]) -> Bar:
        return cls(label, median(values), min(values), max(values))


def draw(document: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """
    Draw all charts into *folder*, and yield their files.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    results = [Result.read(values) for values in document["results"]]
    for name, (height, paint) in CHARTS.items():
        with mpl.rc_context(STYLE):
            figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
            paint(axes, results)
            for suffix, extra in ((".svg", {"metadata": {"Date": None}}), (".png", {"dpi": 130})):
                path = folder / f"{name}{suffix}"
                figure.savefig(path, transparent=True, **extra)
                yield path
            plt.close(figure)


def drains(results: Sequence[Result]) -> Mapping[str, Sequence[Bar]]:
    """
    Return the bars of each queue's drains, by how many processes: the fastest of one process first.
    """
    own = [one for one in results if one.scenario == "queues"]
    names = dict.fromkeys(one.contestant for one in own)
    found = {case: [*_bars(own, case, names)] for case in ("1 process", "2 processes")}
    order = [bar.label for bar in sorted(found["1 process"], key=lambda bar: bar.value, reverse=True)]
    return {case: sorted(bars, key=lambda bar: (*order, bar.label).index(bar.label)) for case, bars in found.items()}


def _bars(own: Sequence[Result], case: str, names: Mapping[str, None]) -> Iterator[Bar]:
    for name in names:
        if values := [figures["jobs/s"] for figures in pick(own, case, name).values()]:
            yield Bar.of(name, values)


def latencies(results: Sequence[Result]) -> Mapping[str, Sequence[tuple[str, float, float]]]:
    """
    Return name, p50 and p99 in milliseconds of each queue, by how many jobs arrive: the fastest first.
    """
    found: dict[str, list[tuple[str, float, float]]] = {}
    for scenario, case in (("pickup", "10 jobs/s"), ("flow", "1,000 jobs/s")):
        own = [one for one in results if one.scenario == scenario and one.figures]
        rows: list[tuple[str, float, float]] = []
        for name in dict.fromkeys(one.contestant for one in own):
            if measured := pick(own, case, name).values():
                usual, slow = (median(each[which] for each in measured) for which in ("p50 ms", "p99 ms"))
                rows.append((name, usual, slow))
        found[case] = sorted(rows, key=lambda row: row[1])
    return found


def flat(results: Sequence[Result]) -> Sequence[Bar]:
    """
    Return what a drain keeps of its rate, among other rows and under a held snapshot.
    """
    bars = []
    for label, scenario, case, base in (
        ("a million terminal rows", "history", "1,000,000 terminal rows", "an empty table"),
        ("a million rows of other topics", "backlog", "1,000,000 older rows of 50 other topics", "an empty table"),
        ("a million future rows", "backlog", "1,000,000 future rows", "an empty table"),
        ("a held snapshot, 300,000 jobs", "snapshot", "a held snapshot", "no snapshot"),
    ):
        own = [one for one in results if one.scenario == scenario]
        pairs = pick(own, case, goals.ASYNC), pick(own, base, goals.ASYNC)
        if values := quotients(*pairs, "jobs/s", "jobs/s"):
            bars.append(Bar.of(label, values))
    return bars


def _paint_drains(axes: Axes, results: Sequence[Result]) -> None:
    width = 0.38
    for index, (case, bars) in enumerate(drains(results).items()):
        places = [place + (index - 0.5) * width for place in range(len(bars))]
        spans = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
        axes.barh(
            places,
            [bar.value for bar in bars],
            height=width,
            color=[_colour(bar.label)[index] for bar in bars],
            xerr=spans,
            error_kw={"ecolor": INK, "capsize": 2, "lw": 1},
            label=case,
        )
        for place, bar in zip(places, bars, strict=True):
            axes.annotate(f" {bar.value:,.0f}", (bar.high, place), va="center", fontsize=9)
        if index == 0:
            axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("A backlog of jobs that do nothing, jobs/s: one process above, two below", loc="left", fontsize=12)


def _paint_latencies(axes: Axes, results: Sequence[Result]) -> None:
    place, ticks = 0, []
    for case, rows in latencies(results).items():
        axes.annotate(f"{case} arrive", (0, place), xycoords=("axes fraction", "data"), va="center", weight="bold")
        place += 1
        for name, usual, slow in rows:
            colour = _colour(name)
            axes.plot([usual, slow], [place, place], color=colour[1], lw=3, zorder=1)
            axes.scatter([usual], [place], color=colour[0], s=45, zorder=2)
            axes.scatter([slow], [place], color=colour[0], marker="|", s=110, zorder=2)
            axes.annotate(
                f"{usual:.1f} / {slow:.1f}", (slow, place), (8, 0), textcoords="offset points", va="center", fontsize=9
            )
            ticks.append((place, name))
            place += 1
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_yticks([where for where, _ in ticks], [name for _, name in ticks])
    axes.set_ylim(place, -1)  # downwards, with room for the first heading
    axes.set_title(
        "From the producer's commit to the handler's start, ms: p50 (dot) and p99 (bar)", loc="left", fontsize=12
    )


def _paint_flat(axes: Axes, results: Sequence[Result]) -> None:
    bars = flat(results)
    places = range(len(bars))
    spans = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
    axes.barh(places, [bar.value for bar in bars], color=OURS[0], height=0.5, xerr=spans, error_kw={"ecolor": INK})
    axes.axvline(1, color=INK, lw=1, ls="--")
    for place, bar in zip(places, bars, strict=True):
        axes.annotate(f"{bar.value:.2f}", (0.01, place), va="center", fontsize=10, color="white", weight="bold")
    axes.set_yticks(places, [bar.label for bar in bars])
    axes.set_xlim(0, max([1.15, *(bar.high + 0.1 for bar in bars)]))
    axes.invert_yaxis()
    axes.set_title("What a drain keeps of its rate on an empty table", loc="left", fontsize=12)


def _colour(contestant: str) -> tuple[str, str]:
    if contestant.startswith("ours"):
        return OURS
    return YARDSTICK if contestant.startswith(goals.BARE) else OTHERS


CHARTS: Final = {"drains": (5.5, _paint_drains), "latencies": (6.0, _paint_latencies), "flat": (2.4, _paint_flat)}
"""By their file's name: how high they are, and who paints them."""
