"""
``brooq-worker config``: the settings that are in force here, and where each of them comes from.

Owns how that is shown. Shows no secret: a token is masked, of an address the password.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

from sqlalchemy_brooq import environment
from sqlalchemy_brooq.cli.endings import Refused, explained, masked
from sqlalchemy_brooq.cli.run import FLAGS, setting_options
from sqlalchemy_brooq.cli.settings import URL_VARIABLE, database_url, load_dotenv, settings_over
from sqlalchemy_brooq.cli.target import app_dir_option, load_queue
from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.environment import Origin
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.settings import SETTINGS, Setting

NONE: Final = "none"


class Row(NamedTuple):
    """
    One setting, as it is shown.
    """

    variable: str
    value: object
    source: str
    """``option``, ``environment``, ``.env``, ``file``, ``credential``, ``program`` or ``default``."""
    place: str
    """More about the source: an option, a variable, a path, a rule."""


@click.command("config", short_help="Show the settings in force, and where each comes from.")
@click.argument("target", metavar="[MODULE:QUEUE]", required=False)
@app_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@setting_options
def config_command(target: str | None, app_dir: Path, as_json: bool, **options: str | None) -> None:
    """
    Show the settings that "run" would work with here: given the same options, environment and folder.

    With MODULE:QUEUE also what the program gave its Queue. Secrets are masked. It reaches no database. If settings are
    refused, all of them are named, and the exit code is 2.
    """
    from_dotenv = load_dotenv(app_dir)
    queue = None if target is None else load_queue(target, app_dir)
    given = {name: text for name, text in options.items() if text is not None and text.strip()}
    config, problems = _config(queue, given)
    rows = []
    try:
        rows.append(_database(from_dotenv))
    except Refused as refused:
        problems += refused.problems
    if config is None or problems:
        raise Refused(*problems)
    rows = [*_settings(config, given, target, from_dotenv), *rows]
    click.echo(json.dumps([row._asdict() for row in rows], indent=2) if as_json else "\n".join(_lines(rows)))


def _config(queue: Queue | None, options: Mapping[str, str]) -> tuple[Config | None, list[str]]:
    """
    Return the settings in force, or what is wrong with them.
    """
    try:
        with explained():
            over = settings_over(Config() if queue is None else queue.config, options, FLAGS)
            if queue is None:
                return Config(**over), []
            queue.reconfigure(**over)  # it knows what the handlers have set for themselves
    except Refused as refused:
        return None, list(refused.problems)
    return queue.config, []


def _settings(
    config: Config, options: Mapping[str, str], target: str | None, from_dotenv: Mapping[str, Path]
) -> Iterator[Row]:
    found = environment.origins(os.environ)
    for name, row in SETTINGS.items():
        value = row.plain(getattr(config, name))
        if name in options:
            yield Row(row.variable, value, "option", FLAGS[name])
        elif name in found:
            yield Row(row.variable, value, *_origin(found[name], from_dotenv))
        elif value != _default(row, config):
            yield Row(row.variable, value, "program", target or "")
        else:
            yield Row(row.variable, value, "default", row.derived.text if row.derived else "")


def _default(row: Setting, config: Config) -> object:
    """
    Return the default of *row* as it is shown, beside the other settings of *config*.
    """
    if row.derived is None:
        return row.plain(row.accept(row.default))
    return row.plain(row.derived.of({name: getattr(config, name) for name in SETTINGS}))


def _origin(origin: Origin, from_dotenv: Mapping[str, Path]) -> tuple[str, str]:
    if origin.kind == "environment" and origin.name in from_dotenv:
        return ".env", str(from_dotenv[origin.name])
    return origin


def _database(from_dotenv: Mapping[str, Path]) -> Row:
    """
    Return the row of the database's address, which commands without a program use.
    """
    set_here = bool(os.environ.get(URL_VARIABLE, "").strip())
    file = environment.secret_file(os.environ, URL_VARIABLE)
    if not set_here and file is None:
        return Row(URL_VARIABLE, None, "default", "")
    address = masked(database_url(None).render_as_string(hide_password=True))
    origin = Origin("environment", URL_VARIABLE) if set_here or file is None else file
    return Row(URL_VARIABLE, address, *_origin(origin, from_dotenv))


def _lines(rows: list[Row]) -> Iterator[str]:
    texts = [(row.variable, NONE if row.value is None else str(row.value), row) for row in rows]
    left, middle = (max(len(text[column]) for text in texts) for column in (0, 1))
    for variable, value, row in texts:
        place = "" if row.place in ("", row.variable) else f" ({row.place})"
        yield f"{variable:<{left}}  {value:<{middle}}  {row.source}{place}"
