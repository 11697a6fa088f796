"""
The published figures: the page says what its results say, and so do the charts.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark import charts, goals, page
from tests.benchmark.publish import PARTS
from tests.benchmark.runner import Result

PUBLISHED: dict[str, Any] = json.loads(page.FIGURES.read_text())


@pytest.fixture
def published() -> dict[str, Any]:
    return copy.deepcopy(PUBLISHED)


def results(*rates: tuple[str, str, float]) -> list[Result]:
    """
    Return drains, each by its contestant, its number of processes, and its rate; each as its own repetition.
    """
    counts: dict[tuple[str, str], int] = {}
    made = []
    for contestant, case, rate in rates:
        turn = counts[contestant, case] = counts.get((contestant, case), -1) + 1
        made.append(Result("queues", case, contestant, turn, {"jobs/s": rate}, 1.0))
    return made


def test_the_page_shows_the_published_figures() -> None:
    text = page.PAGE.read_text()

    assert text == page.rendered(text, PUBLISHED), "run: python -m tests.benchmark page"


def test_a_figure_that_changes_changes_the_page(published: dict[str, Any]) -> None:
    text = page.PAGE.read_text()
    measured = next(one for one in published["results"] if one["scenario"] == "queues" and one["figures"])
    measured["figures"]["jobs/s"] = 123_456.0
    published["results"] = [measured]

    assert "123,456" in page.rendered(text, published)


def test_the_page_shows_every_part_of_the_series() -> None:
    shown = set(re.findall(r"<!-- figures: (\w+) -->", page.PAGE.read_text()))

    assert shown >= (set(PARTS) - {*page.OVERVIEW_PARTS}) | set(page.SECTIONS)


def test_each_table_has_the_command_that_prints_it(published: dict[str, Any]) -> None:
    for name, part in PARTS.items():
        assert part.command() in page.section(name, published)


def test_figures_that_nobody_knows_are_refused(published: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'weather' is no part of the published series"):
        page.section("weather", published)


@pytest.mark.parametrize(("scale", "warns"), [("0.015 to 0.03", True), ("0.5 to 1", False), ("1", False)])
def test_a_series_at_a_small_scale_says_so(published: dict[str, Any], scale: str, warns: bool) -> None:
    published["about"]["scale"] = scale

    assert ("a look around" in page.section("about", published)) is warns


def test_a_goal_is_a_quotient_within_a_repetition() -> None:
    goal = next(goal for goal in goals.GOALS if goal.text == "drain, `async def` ÷ pgqueuer on asyncpg")
    measured = results(
        (goals.ASYNC, "1 process", 30.0),
        (goals.PGQUEUER, "1 process", 20.0),
        (goals.ASYNC, "1 process", 10.0),
        (goals.PGQUEUER, "1 process", 5.0),
        (goals.ASYNC, "1 process", 100.0),  # its other side failed
    )

    assert goal.measured(measured) == 1.75
    assert goal.measured([]) is None


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(1.5, "reached"), (1.494, "goal missed: "), (1.2, "goal missed: "), (1.1, "**the must is missed**: ")],
)
def test_a_goal_is_judged_by_the_figure_that_is_shown(value: float, verdict: str) -> None:
    goal = goals.Goal(
        "a quotient", goals.Point("queues", "1 process", goals.ASYNC), None, 1.2, 1.5, reason="[why](#why)"
    )

    assert goal.verdict(value) == (verdict if verdict == "reached" else f"{verdict}[why](#why)")


def test_less_can_be_better() -> None:
    goal = goals.Goal("bytes", goals.Point("wal", "", goals.ASYNC), None, 1_600, 1_250, less=True)

    assert [goal.verdict(value).partition(":")[0] for value in (1_250, 1_432, 1_700)] == [
        "reached",
        "goal missed",
        "**the must is missed**",
    ]


def test_every_reason_of_a_goal_is_a_heading_of_the_page() -> None:
    headings = re.findall(r"^## (.+)$", page.PAGE.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    for goal in goals.GOALS:
        found = re.search(r"\(#(.+)\)", goal.reason)
        assert found, goal
        assert found[1] in anchors, goal


def test_bars_have_the_spread_of_their_repetitions() -> None:
    measured = results(
        ("slow", "1 process", 3.0), ("ours, async", "1 process", 40.0), ("ours, async", "1 process", 50.0)
    )

    assert charts.drains(measured)["1 process"] == [
        charts.Bar("ours, async", 45.0, 40.0, 50.0),
        charts.Bar("slow", 3.0, 3.0, 3.0),
    ]


def test_the_same_figures_are_the_same_drawing(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        drawn = [*charts.draw(PUBLISHED, folder)]
        assert sorted(path.name for path in drawn) == sorted(
            f"{name}{suffix}" for name in charts.CHARTS for suffix in (".svg", ".png")
        )

    for name in charts.CHARTS:
        one, two = ((folder / f"{name}.svg").read_text() for folder in folders)
        assert one == two
    assert ">ours, async<" in (tmp_path / "one" / "drains.svg").read_text()


def test_every_chart_that_is_drawn_is_shown_on_the_page() -> None:
    text = page.PAGE.read_text()

    for name in charts.CHARTS:
        assert f"(performance/{name}.svg)" in text
        assert {suffix for suffix in (".svg", ".png") if (page.FIGURES.parent / f"{name}{suffix}").exists()} == {
            ".svg",
            ".png",
        }
