"""
The ``QUEUE_*`` variables: which settings they give, and the file that the token may stand in.

Reads the mapping that it is handed, never the process's own by itself. What a text means, and what a setting may be,
the rows of `settings` know.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Final

from sqlalchemy_brooq.durations import shown
from sqlalchemy_brooq.examination import suggestion
from sqlalchemy_brooq.kinds import MAX_TOKEN, SECRET
from sqlalchemy_brooq.settings import PREFIX, SETTINGS, Unparsed

_TOKEN_FILE: Final = "QUEUE_API_TOKEN_FILE"  # noqa: S105 - a variable's name

_logger = logging.getLogger(__name__)
_warned: set[str] = set()


def read(environ: Mapping[str, str], overridden: Container[str]) -> tuple[dict[str, object], list[str]]:
    """
    Return the settings that *environ* gives, but for the *overridden* ones, and the problems with finding them.

    The values are yet to be checked: `Setting.accept` parses them. Warns about unknown variables, once a process.
    """
    _warn_of_strangers(environ)
    given: dict[str, object] = {}
    for name, row in SETTINGS.items():
        text = environ.get(row.variable, "")
        if text.strip() and name not in overridden:
            given[name] = Unparsed(text)
    path = environ.get(_TOKEN_FILE, "").strip()
    if not path or "api_token" in overridden:
        return given, []
    if "api_token" in given:
        return given, [f"{_TOKEN_FILE}: {SETTINGS['api_token'].variable} is set as well: keep one of the two"]
    try:
        given["api_token"] = _token_in(Path(path))
    except ValueError as error:
        return given, [f"{_TOKEN_FILE}: {error}"]
    return given, []


def _token_in(path: Path) -> object:
    try:
        with path.open("rb") as file:
            content = file.read(4 * MAX_TOKEN)  # and no more: the path may be a device's
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{shown(str(path))} can't be read: {reason}") from None
    text = content.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")
    token = SECRET.check(text)
    if token is None:
        raise ValueError(f"{shown(str(path))} is empty: put the token into it, or unset the variable")
    return token


def _warn_of_strangers(environ: Mapping[str, str]) -> None:
    known = [_TOKEN_FILE.removeprefix(PREFIX), *(name.upper() for name in SETTINGS)]
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known and environ[variable] and variable not in _warned:
            _warned.add(variable)
            hint = suggestion(name, known, PREFIX)
            _logger.warning("%s: unknown setting, it has no effect%s", variable, hint)
