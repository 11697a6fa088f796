"""
Make a run and print its tables: ``python -m tests.benchmark --help``.

``publish`` makes the series that the documentation shows, and ``page`` writes it into the documentation.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from tests.benchmark import page as pages
from tests.benchmark import publish as series
from tests.benchmark import report
from tests.benchmark.contestants import DEFAULT, Contestant, find
from tests.benchmark.runner import Plan, Result, run
from tests.benchmark.scenarios import Case, everything
from tests.benchmark.servers import Lab

SCENARIOS: Final = everything()
QUICK: Final = 0.1
"""The scale of ``--quick``."""
MEASURE: Final = "measure"


class Default(click.Group):
    """
    Commands, of which `measure` need not be named.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args[:1] and args[0] in {*self.commands, "--help"}
        return super().parse_args(ctx, args if named else [MEASURE, *args])


@click.group(cls=Default)
def main() -> None:
    """
    Measure how fast it is. Without the name of a command: measure, whose options `measure --help` tells.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@main.command(MEASURE)
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="A scenario; all of them by default.")
@click.option("--case", "cases", multiple=True, metavar="TEXT", help="Only cases whose name contains this.")
@click.option("--contestant", "contestants", multiple=True, default=DEFAULT, show_default=True, help="Who takes part.")
@click.option("--peers", is_flag=True, help="The other queues take part as well.")
@click.option("--repeat", type=click.IntRange(1), help="How often each measurement is made; 3 by default.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), help="Multiplies all sizes; 1 by default.")
@click.option("--quick", is_flag=True, help=f"A look around: --repeat 1 --scale {QUICK:g}.")
@click.option("--url", help="A server to use, as a superuser; by default one of its own is started.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures there.")
@click.option("--from", "earlier", multiple=True, type=click.Path(exists=True, path_type=Path), help="Print files.")
def measure(
    only: tuple[str, ...],
    cases: tuple[str, ...],
    contestants: tuple[str, ...],
    peers: bool,
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

    taking_part = [find(spec) for spec in (*contestants, *(series.PEERS if peers else ()))]
    repeat, scale = repeat or (1 if quick else 3), scale or (QUICK if quick else 1.0)
    plan = Plan([SCENARIOS[name] for name in only or SCENARIOS], taking_part, repeat, scale, wanted)
    show(carry_out([plan], taking_part, url, file))


@main.command()
@click.option("--url", help="A server to use, as a superuser; by default one of its own is started.")
@click.option("--only", multiple=True, type=click.Choice(list(series.PARTS)), help="A part; all of them by default.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Multiplies all sizes.")
@click.option("--repeat", type=click.IntRange(1), help="So often at most.")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), default=pages.FIGURES, help="Where figures go."
)
def publish(url: str | None, only: tuple[str, ...], scale: float, repeat: int | None, file: Path) -> None:
    """
    Measure the series that the documentation shows. It takes a quarter of an hour of a machine that does nothing else.
    """
    plans = [series.PARTS[name].plan(scale, repeat) for name in only or series.PARTS]
    show(carry_out(plans, list(series.contestants()), url, file))


@main.command()
@click.option("--check", is_flag=True, help="Write nothing; end with exit code 1 if the page isn't what it would be.")
def page(check: bool) -> None:
    """
    Write the published figures into docs/performance.md, and draw the charts beside it.
    """
    document = json.loads(pages.FIGURES.read_text())
    text = pages.PAGE.read_text()
    rendered = pages.rendered(text, document)
    if check:
        raise SystemExit(text != rendered)
    pages.PAGE.write_text(rendered)
    from tests.benchmark import charts

    for path in charts.draw(document, pages.FIGURES.parent):
        click.echo(path)


def carry_out(
    plans: Sequence[Plan], contestants: Sequence[Contestant], url: str | None, file: Path | None
) -> dict[str, Any]:
    """
    Make all measurements of *plans*, one after the other, and return what came of them.

    Args:
        plans: What is measured.
        contestants: Whose versions are told.
        url: The server.
        file: Where it is written, also if Ctrl-C ends it.
    """
    document: dict[str, Any] = {"about": {}, "results": []}
    with Lab(url) as lab, _kept(document, file):
        document["about"] = report.about(contestants, plans, lab)
        for plan in plans:
            for result in run(plan, lab):
                progress(result)
                document["results"].append(asdict(result))
    return document


@contextmanager
def _kept(document: dict[str, Any], file: Path | None) -> Iterator[None]:
    """
    Let Ctrl-C end the block only; write *document* at its end, if anything was measured.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo("ended early: this is what was measured", err=True)
    finally:
        if file is not None and document["results"]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(document, indent=1) + "\n")


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
