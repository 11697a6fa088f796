"""
The ``QUEUE_*`` variables: which settings they give, and the files that the token may stand in.

Reads the mapping that it is handed, never the process's own by itself. What a text means, and what a setting may be,
the rows of `settings` know.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy_brooq.durations import shown
from sqlalchemy_brooq.examination import suggestion
from sqlalchemy_brooq.kinds import MAX_TOKEN, SECRET
from sqlalchemy_brooq.settings import PREFIX, SETTINGS, Unparsed

TOKEN: Final = "QUEUE_API_TOKEN"  # noqa: S105 - a variable's name
_TOKEN_FILE: Final = "QUEUE_API_TOKEN_FILE"  # noqa: S105 - the same
CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""Where systemd puts the credentials of a service, a file each."""

_logger = logging.getLogger(__name__)
_warned: set[str] = set()


class Origin(NamedTuple):
    """
    Where a setting was found.
    """

    kind: str
    """``environment``, ``file`` or ``credential``."""
    name: str
    """The variable, or the path of the file."""


def origins(environ: Mapping[str, str]) -> dict[str, Origin]:
    """
    Return where *environ* gives which settings.
    """
    found = {
        name: Origin("environment", row.variable)
        for name, row in SETTINGS.items()
        if environ.get(row.variable, "").strip()
    }
    file = secret_file(environ, TOKEN)
    if file is not None:
        found.setdefault("api_token", file)
    return found


def secret_file(environ: Mapping[str, str], variable: str) -> Origin | None:
    """
    Return the file that holds what *variable* would: the one that ``<variable>_FILE`` names, or systemd's credential.
    """
    path = environ.get(f"{variable}_FILE", "").strip()
    if path:
        return Origin("file", path)
    folder = environ.get(CREDENTIALS, "").strip()
    credential = Path(folder, variable)
    return Origin("credential", str(credential)) if folder and credential.is_file() else None


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
    file = secret_file(environ, TOKEN)
    if file is None or "api_token" in overridden:
        return given, []
    if "api_token" in given:
        # A credential is of the whole service; a variable says more, and goes before it.
        both = f"{_TOKEN_FILE}: {TOKEN} is set as well: keep one of the two"
        return given, [both] if file.kind == "file" else []
    try:
        given["api_token"] = _token_in(Path(file.name))
    except ValueError as error:
        return given, [f"{_TOKEN_FILE if file.kind == 'file' else TOKEN}: {error}"]
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
