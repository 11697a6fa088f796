"""
``brooq-worker check``: what the doctor found, and what to do about it.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import click
from sqlalchemy import Engine

from sqlalchemy_brooq.cli.database import database_engine, database_options, duration
from sqlalchemy_brooq.cli.endings import FAILED, explained, masked
from sqlalchemy_brooq.cli.printing import GAP, print_json_array, room_on_stdout, safe
from sqlalchemy_brooq.cli.settings import load_dotenv, settings_over
from sqlalchemy_brooq.cli.target import app_dir_option, load_queue
from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.doctor import Finding, Level, Patient, examine
from sqlalchemy_brooq.queue import Queue

LEVEL_WIDTH: Final = max(map(len, Level))
NARROWEST: Final = 40
"""Columns below which text isn't broken into ever shorter lines."""


@click.command("check", short_help="Look for what is wrong.")
@click.argument("targets", metavar="[MODULE:QUEUE]...", nargs=-1)
@app_dir_option
@click.option(
    "--old-transaction",
    metavar="DURATION",
    type=duration,
    default="10m",
    show_default=True,
    help="From when on a transaction that holds vacuum back is a problem.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, of an object for each finding.")
@database_options
@click.pass_context
def check_command(
    context: click.Context,
    targets: tuple[str, ...],
    app_dir: Path,
    old_transaction: timedelta,
    as_json: bool,
    database_url: str | None,
    schema: str | None,
) -> None:
    """
    Look at the database and the table, and say what is wrong and what to do about it. Nothing is changed.

    Give every MODULE:QUEUE that your workers run, to learn of jobs that none of them serves; the database is then the
    one of the first, unless --database-url names another.

    The exit code is 0 if all is well, and 1 if something needs a person.
    """
    levels: set[Level] = set()
    load_dotenv(app_dir)
    queues = [load_queue(target, app_dir) for target in targets]
    with explained(), _engine(queues, database_url, schema) as engine:
        findings = _watched(examine(_patient(queues, engine, old_transaction)), levels)
        if as_json:
            print_json_array(map(_facts, findings))
        else:
            _print(findings)
    if any(level.needs_a_person for level in levels):
        context.exit(FAILED)


@contextlib.contextmanager
def _engine(queues: Sequence[Queue], url: str | None, schema: str | None) -> Iterator[Engine]:
    """
    Lend an engine for the database that is meant: that of the first queue, unless an option names one.
    """
    if url is not None or not queues:
        with database_engine(url, schema) as engine:
            yield engine
        return
    with contextlib.closing(queues[0]) as queue:
        engine = queue._plain_source()  # noqa: SLF001 - the very engine that a worker of it would connect with
        yield engine.execution_options(schema_translate_map={None: schema}) if schema else engine


def _patient(queues: Sequence[Queue], engine: Engine, old: timedelta) -> Patient:
    """
    Return what is expected of the database, by the settings that workers started here would have.
    """
    given = [queue.config for queue in queues] or [Config()]
    configs = [replace(config, **cast(dict[str, Any], settings_over(config, {}, {}))) for config in given]
    return Patient(
        engine,
        frozenset().union(*(queue.topics for queue in queues)) if queues else None,
        # If one of them polls, that is how it is meant here; if one looks for leases seldom, another may look in time.
        reaper_period=min(config.reaper_period for config in configs),
        wakeup="poll" if all(config.wakeup == "poll" for config in configs) else "listen",
        old=old,
    )


def _print(findings: Iterable[Finding]) -> None:
    """
    Print *findings* as they come: how bad and about what, then what to do, a step a line.
    """
    terminal = room_on_stdout()
    room = None if terminal is None else max(terminal, NARROWEST)
    margin = " " * (LEVEL_WIDTH + len(GAP))
    for finding in findings:
        click.echo(_wrapped(f"{finding.level:{LEVEL_WIDTH}}{GAP}", f"{finding.check}: {finding.text}", room))
        for step in finding.advice:
            click.echo(_wrapped(f"{margin}-> ", step, room))


def _wrapped(margin: str, text: str, room: int | None) -> str:
    """
    Return *text* behind *margin*, in lines of no more than *room* columns.
    """
    clean = safe(masked(text))
    if room is None:
        return margin + clean
    indent = " " * len(margin)
    return textwrap.fill(clean, room, initial_indent=margin, subsequent_indent=indent, break_on_hyphens=False)


def _facts(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "text": masked(finding.text),
        "advice": list(map(masked, finding.advice)),
    }


def _watched(findings: Iterable[Finding], levels: set[Level]) -> Iterator[Finding]:
    """
    Yield *findings*, and collect how bad they are.
    """
    for finding in findings:
        levels.add(finding.level)
        yield finding
