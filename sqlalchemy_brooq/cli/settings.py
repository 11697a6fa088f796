"""
Where the command line's settings come from: options, the environment, a ``.env`` file.

Owns the precedence, and the address of the database. What a setting means, and what it may be, is ``config``'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
from sqlalchemy import URL

from sqlalchemy_brooq import environment
from sqlalchemy_brooq.cli.endings import Refused
from sqlalchemy_brooq.config import Config, ConfigKeywords
from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.settings import SETTINGS

Function = TypeVar("Function", bound=Callable[..., Any])

URL_VARIABLE: Final = "DATABASE_URL"
URL_FILE: Final = "DATABASE_URL_FILE"
DRIVER: Final = "postgresql+psycopg"

_URL_OPTION: Final = "--database-url"
_LONGEST_FILE: Final = 1 << 16
"""Bytes of a file that holds one address, or some variables; the path may be a device's, and never end."""


def load_dotenv(folder: Path) -> dict[str, Path]:
    """
    Take into the environment what the first ``.env`` file in *folder* or above it sets, as Flask does.

    What the environment has already stays, except that an empty variable of ours counts as unset. Returns the
    variables that the file has set, each with the file.
    """
    path = next((file for at in _upwards(folder) if (file := at / ".env") and os.path.isfile(file)), None)  # noqa: PTH113 - pathlib's raises where a folder can't be entered
    if path is None:
        return {}
    try:
        values = _dotenv_values(path)
    except ImportError:
        click.echo(f"Note: {path} is not read: python-dotenv is not installed", err=True)
        return {}
    taken = {}
    for name, value in values.items():
        if value is not None and not _is_set(name):
            try:
                os.environ[name] = value
                taken[name] = path
            except (ValueError, OSError):
                raise Refused(f"{path}: {name!r} can't be set, a variable can't hold that name or value") from None
    return taken


def database_url(option: str | None) -> URL:
    """
    Return the address of the database, for psycopg.

    Args:
        option: What the command line gave; it goes before the environment, which then isn't read.

    Raises:
        Refused: There is none, two are given, or it doesn't lead to a PostgreSQL.
    """
    from sqlalchemy_brooq import migrations  # here, since no worker needs it

    source, text = database_address(option)
    try:
        url = migrations.database_url(text)
    except ConfigError as error:
        raise Refused(*(f"{source}: {problem}" for problem in error.problems)) from None
    if url.drivername != DRIVER:
        raise Refused(
            f"{source}: the database URL names the driver {url.get_driver_name()!r}: "
            f"this command connects with psycopg, so write postgresql:// or {DRIVER}://"
        )
    if "@" in (url.host or ""):
        raise Refused(f"{source}: the user or the password in the database URL has an '@': write it as %40")
    return url


def setting_option(flag: str, name: str, metavar: str) -> Callable[[Function], Function]:
    """
    Decorate a command with an option for a setting.

    It is handed over as the text that was given: `settings_over` reads it, together with the others.
    """
    row = SETTINGS[name]
    described = f"{row.help} [{row.variable}; default: {row.default_text}]"
    return click.option(flag, name, metavar=metavar, default=None, help=described)


def settings_over(config: Config, options: Mapping[str, str | None], flags: Mapping[str, str]) -> ConfigKeywords:
    """
    Return the settings that go before *config*: the options', and those of the environment.

    Args:
        config: What the program gave its queue.
        options: Name of a setting -> its text on the command line.
        flags: Name of a setting -> its option, for messages.

    Raises:
        Refused: Settings were refused; all of them are named, by option or variable.
    """
    texts = {name: text for name, text in options.items() if text is not None and text.strip()}
    environ = {**os.environ, **{SETTINGS[name].variable: text for name, text in texts.items()}}
    given, _ = environment.read(environ, overridden=())
    # A derived value is derived anew by `reconfigure`; any other is needed here, as the rules compare settings.
    kept = {
        name: value
        for name, row in SETTINGS.items()
        if name not in given and row.derived is None and (value := getattr(config, name)) != row.accept(row.default)
    }
    try:
        read = Config.from_env(environ, **cast(ConfigKeywords, kept))
    except ConfigError as error:
        labels = {SETTINGS[name].variable: flags[name] for name in texts}
        raise Refused(*(_relabelled(problem, labels) for problem in error.problems)) from None
    return cast(ConfigKeywords, {name: getattr(read, name) for name in given})


def _upwards(folder: Path) -> tuple[Path, ...]:
    try:
        start = folder.absolute()
    except FileNotFoundError:  # the current folder was removed
        return ()
    return (start, *start.parents)


def _dotenv_values(path: Path) -> Mapping[str, str | None]:
    """
    Return what *path* sets; a line that isn't understood is warned about and left out.
    """
    import dotenv
    from dotenv.parser import parse_stream

    bindings = list(parse_stream(StringIO(text_of(path, str(path)))))
    for wrong in (binding for binding in bindings if binding.error):
        line = wrong.original.line
        click.echo(f"Warning: {path}, line {line}: not understood and left out, write NAME=value", err=True)
    understood = "".join(binding.original.string for binding in bindings if not binding.error)
    return dotenv.dotenv_values(stream=StringIO(understood))


def _is_set(name: str) -> bool:
    if name in {URL_VARIABLE, URL_FILE} or name.startswith("QUEUE_"):
        return bool(os.environ.get(name, "").strip())
    return name in os.environ


def database_address(option: str | None) -> tuple[str, str]:
    """
    Return where the address of the database was found, and the address.

    Raises:
        Refused: There is none, or two are given, or its file can't be read.
    """
    if option is not None and option.strip():
        return _URL_OPTION, option.strip()
    text, file = (os.environ.get(name, "").strip() for name in (URL_VARIABLE, URL_FILE))
    if text and file:
        raise Refused(f"{URL_FILE}: {URL_VARIABLE} is set as well: keep one of the two")
    if text:
        return URL_VARIABLE, text
    credential = environment.secret_file(os.environ, URL_VARIABLE)
    if credential is None:
        raise Refused(f"there is no database to work on: give {_URL_OPTION}, or set {URL_VARIABLE} or {URL_FILE}")
    source = URL_FILE if file else URL_VARIABLE
    label = f"{source}: {credential.name!r}"
    text = text_of(Path(credential.name), label).strip()
    if not text:
        raise Refused(f"{label} is empty: put the address of the database into it")
    return source, text


def text_of(path: Path, label: str) -> str:
    """
    Return the content of a short file; `Refused` where it can't be read, with *label* for its name.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
        if len(content) > _LONGEST_FILE:
            raise Refused(f"{label} is longer than {_LONGEST_FILE} bytes: that is not what belongs there")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(f"{label} can't be read: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise Refused(f"{label} can't be read: {reason}") from None


def _relabelled(problem: str, labels: Mapping[str, str]) -> str:
    label, colon, rest = problem.partition(":")
    return labels.get(label, label) + colon + rest
