"""
Make a run and print its tables: ``python -m tests.benchmark --help``.
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tests.benchmark import report
from tests.benchmark.contestants import DEFAULT, find
from tests.benchmark.runner import Plan, Result, run
from tests.benchmark.scenarios import Case, everything
from tests.benchmark.servers import Lab

SCENARIOS = everything()
QUICK = 0.1
"""The scale of ``--quick``."""


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="A scenario; all of them by default.")
@click.option("--case", "cases", multiple=True, metavar="TEXT", help="Only cases whose name contains this.")
@click.option("--contestant", "contestants", multiple=True, default=DEFAULT, show_default=True, help="Who takes part.")
@click.option("--repeat", type=click.IntRange(1), help="How often each measurement is made; 3 by default.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), help="Multiplies all sizes; 1 by default.")
@click.option("--quick", is_flag=True, help=f"A look around: --repeat 1 --scale {QUICK:g}.")
@click.option("--url", help="A server to use, as a superuser; by default one of its own is started.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures there.")
@click.option("--from", "earlier", multiple=True, type=click.Path(exists=True, path_type=Path), help="Print files.")
def main(
    only: tuple[str, ...],
    cases: tuple[str, ...],
    contestants: tuple[str, ...],
    repeat: int | None,
    scale: float | None,
    quick: bool,
    url: str | None,
    file: Path | None,
    earlier: tuple[Path, ...],
) -> None:
    """
    Measure ours beside bare SQL, in turns, and print tables.
    """
    if earlier:
        for path in earlier:
            show(json.loads(path.read_text()))
        return

    def wanted(case: Case) -> bool:
        return not cases or any(text in case.name for text in cases)

    plan = Plan(
        [SCENARIOS[name] for name in only or SCENARIOS],
        [find(spec) for spec in contestants],
        repeat or (1 if quick else 3),
        scale or (QUICK if quick else 1.0),
        wanted,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Lab(url) as lab:
        document: dict[str, Any] = {"about": report.about(plan, lab), "results": []}
        with suppress(KeyboardInterrupt):  # what was measured until then is shown
            for result in run(plan, lab):
                progress(result)
                document["results"].append(asdict(result))
    if file is not None:
        file.write_text(json.dumps(document, indent=1) + "\n")
    show(document)


def progress(result: Result) -> None:
    """
    Tell of a measurement on stderr.
    """
    figures = result.error or ", ".join(f"{value:,.2f} {name}" for name, value in result.figures.items())
    click.echo(f"{result.scenario} | {result.case} | {result.contestant} | {result.seconds} s | {figures}", err=True)


def show(document: dict[str, Any]) -> None:
    """
    Print the tables of a run.
    """
    results = [Result.read(values) for values in document["results"]]
    click.echo("\n".join(report.tables(document["about"], results, SCENARIOS)))


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmark")
