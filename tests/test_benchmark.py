"""
The benchmark still runs: tiny sizes, whose figures mean nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import URL

from tests.benchmark.__main__ import main

OURS = "ours, async"
BARE = "bare SQL"


@pytest.fixture
def measured(server_url: URL, tmp_path: Path) -> tuple[str, dict[str, list[dict[str, object]]]]:
    """
    A run's tables, and its results by their scenario.
    """
    file = tmp_path / "figures.json"
    url = server_url.render_as_string(hide_password=False)
    scenarios = [word for name in ("drain", "single") for word in ("--only", name)]
    cases = [word for text in ("10 slots, 1 process", "queue.enqueue") for word in ("--case", text)]
    contestants = ["--contestant", "ours:async", "--contestant", "bare"]

    ran = CliRunner().invoke(
        main,
        ["--quick", "--scale", "0.002", "--url", url, "--json", str(file), *scenarios, *cases, *contestants],
        catch_exceptions=False,
    )

    assert ran.exit_code == 0, ran.output
    results: dict[str, list[dict[str, object]]] = {}
    for result in json.loads(file.read_text())["results"]:
        results.setdefault(result["scenario"], []).append(result)
    return ran.stdout, results


def test_the_benchmark_measures_ours_beside_bare_sql(
    measured: tuple[str, dict[str, list[dict[str, object]]]],
) -> None:
    tables, results = measured

    assert [result["error"] for one in results.values() for result in one if result["error"]] == []
    assert [(one["case"], one["contestant"]) for one in results["drain"]] == [
        ("10 slots, 1 process", OURS),
        ("10 slots, 1 process", BARE),
    ]
    assert [one["contestant"] for one in results["single"]] == [OURS, BARE]
    assert all(value > 0 for one in results.values() for result in one for value in figures(result))
    assert "### Drain of a backlog\n\n|  |  | jobs/s | WAL B/job | ÷ bare SQL |\n" in tables
    assert "PostgreSQL" in tables.splitlines()[0]


def figures(result: dict[str, object]) -> list[float]:
    values = result["figures"]
    assert isinstance(values, dict)
    return list(values.values())
