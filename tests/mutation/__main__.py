"""
Make a run and print what was not noticed: ``python -m tests.mutation --help``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.runner import NO_END, PACKAGE, Runner, prepare
from tests.mutation.targets import TARGETS

SERVER_VARIABLE: Final = "BROOQ_TEST_DATABASE_URL"
ACCEPTED: Final = Path(__file__).with_name("accepted.toml")
"""The mutants that nobody could notice, with a reason for each."""


@click.command()
@click.argument("modules", nargs=-1, type=click.Choice(list(TARGETS)), metavar="[MODULE]...")
@click.option("--processes", default=2, show_default=True, help="How many mutants are looked at at a time.")
@click.option("--longest", default=1.0, show_default=True, help="Seconds; tests that take longer are left out.")
@click.option("--every", "step", default=1, help="Only one mutant in so many: a sample.")
@click.option("--line", "lines", multiple=True, type=int, help="Only the mutants of this line.")
@click.option("--show", is_flag=True, help="Print what pytest says as well.")
def main(
    modules: tuple[str, ...], processes: int, longest: float, step: int, lines: tuple[int, ...], show: bool
) -> None:
    """
    Change the code in one place at a time, and tell which changes no test notices.
    """
    prepare()
    new = 0
    with databases(processes) as templates:
        for module in modules or TARGETS:
            path = Path(PACKAGE, f"{module}.py")
            every = [one for one in mutants(path.read_text()) if not lines or one.line in lines][::step]
            click.echo(f"== {module}: {len(every)} mutants")
            left = every
            for turn in TARGETS[module]:
                tests = [f"tests/{name}.py" for name in turn.split()]
                left = unnoticed(Runner(path, tests, templates, longest=longest, show=show), left) if left else []
                click.echo(f"   {len(left)} are not noticed by {turn}")
            new += report(module, every, left)
    sys.exit(1 if new else 0)


@contextmanager
def databases(number: int) -> Iterator[list[str]]:
    """
    Lend the names of *number* migrated databases, on the server that the tests will use.
    """
    program = [sys.executable, "-m", "tests.mutation.server", str(number)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdin is None or server.stdout is None:
            raise RuntimeError("the server's pipes were asked for")
        told = json.loads(server.stdout.readline())
        os.environ[SERVER_VARIABLE] = told["url"]
        yield told["names"]
        server.stdin.close()


def unnoticed(runner: Runner, wanted: Sequence[Mutant]) -> list[Mutant]:
    """
    Return which mutants *runner*'s tests don't notice, in the order of their lines.
    """
    runner.learn()
    left: list[Mutant] = []
    begun = time.monotonic()
    for number, (mutant, verdict) in enumerate(runner.verdicts(wanted), start=1):
        if not verdict.failed:
            left.append(mutant)
        if verdict.failed in {"", NO_END} or number % 50 == 0:
            said = verdict.failed or "not noticed"
            click.echo(
                f"     {number} in {time.monotonic() - begun:.0f} s: {mutant.line} {mutant.name} ({said})", err=True
            )
    return sorted(left)


def report(module: str, every: Sequence[Mutant], left: Sequence[Mutant]) -> int:
    """
    Print what is left of a module's mutants, and return how many of these nobody has accepted.
    """
    listed = tomllib.loads(ACCEPTED.read_text()).get("accepted", [])
    reasons = {name: one["reason"] for one in listed if one["module"] == module for name in one["mutants"]}
    for mutant in left:
        click.echo(f"   {module}:{mutant.line} {mutant.name}: {reasons.get(mutant.name, 'NOT NOTICED')}")
    names = {mutant.name for mutant in left}
    for name in reasons.keys() - names & {mutant.name for mutant in every}:
        click.echo(f"   accepted, but noticed now or gone: {name}")
    new = len(names - reasons.keys())
    click.echo(
        f"== {module}: {len(every)} mutants, {len(every) - len(left)} noticed, {len(left) - new} accepted, {new} not"
    )
    return new


if __name__ == "__main__":
    main()
