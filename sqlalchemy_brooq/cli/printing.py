"""
How answers are printed: tables and facts for people, JSON for programs; plain text in both.

Text from the database may be anything. On its way out, whatever could steer a terminal or break a line is written as
an escape sequence. Only a terminal gets lines cut to its width; a pipe gets all of everything.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

import click

from sqlalchemy_brooq.documents import ascii_of, to_json

CUT: Final = "..."
"""Where something was left out."""
GAP: Final = "  "
NARROWEST: Final = 8
"""Characters that a cell keeps, however narrow the terminal is."""
DASH: Final = "-"

_UNITS: Final = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_DELETE: Final = "\x7f"


def speak_any_text() -> None:
    """
    Let stdout and stderr take any character: what their encoding doesn't have is written as an escape sequence.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_terminal(stream: TextIO | None) -> bool:
    """
    Tell whether there is somebody at the other end of *stream*, which is ``None`` if it was closed from the start.
    """
    return stream is not None and stream.isatty()


def room_on_stdout() -> int | None:
    """
    Return the width in columns of the terminal that stdout is; ``None`` if it is none.

    ``COLUMNS`` goes before what the terminal says itself.
    """
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def safe(text: str) -> str:
    """
    Return *text* in one line that no terminal takes for an order.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def safe_lines(text: str) -> list[str]:
    """
    Return the lines of *text*, each as `safe` does.
    """
    return [safe(line) for line in text.split("\n")]


def width(text: str) -> int:
    """
    Return how many columns a terminal shows *text* in.
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, room: int) -> str:
    """
    Return *text* in no more than *room* columns.
    """
    if width(text) <= room:
        return text
    kept, used = [], len(CUT)
    for character in text:
        used += _columns(character)
        if used > room:
            break
        kept.append(character)
    return "".join(kept) + CUT


class Table:
    """
    Lines of cells below a header.

    Args:
        header: The columns' names; one that ends with ``>`` is aligned to the right.
        rows: Rows by which the columns' widths are chosen: all of them, or the first ones.
        flexible: The column that is cut where there isn't room for all of it.
        room: Columns of the terminal; ``None``: nothing is cut.
    """

    def __init__(
        self, header: Sequence[str], rows: Iterable[Sequence[str]], *, flexible: int, room: int | None
    ) -> None:
        self._right = [name.endswith(">") for name in header]
        self._names = [name.removesuffix(">") for name in header]
        columns = zip(self._names, *(map(safe, row) for row in rows), strict=True)
        self._widths = [max(map(width, column)) for column in columns]
        if room is not None:
            excess = sum(self._widths) + len(GAP) * (len(header) - 1) - room
            self._widths[flexible] = max(self._widths[flexible] - max(excess, 0), NARROWEST)
        self._flexible = None if room is None else flexible

    @property
    def header(self) -> str:
        """
        The line with the names of the columns.
        """
        return self.line(self._names)

    def line(self, cells: Sequence[str]) -> str:
        """
        Return the line with *cells*.
        """
        return GAP.join(self._cell(number, safe(cell)) for number, cell in enumerate(cells)).rstrip()

    def _cell(self, number: int, text: str) -> str:
        room = self._widths[number]
        shown = cut(text, room) if number == self._flexible else text
        padding = " " * (room - width(shown))
        return padding + shown if self._right[number] else shown + padding


def brief(duration: timedelta) -> str:
    """
    Return *duration* in its largest unit, whole: ``3d``, ``59m``; less than a second is ``0s``.
    """
    return next((f"{duration // size}{unit}" for unit, size in _UNITS if duration >= size), "0s")


def exact(duration: timedelta) -> str:
    """
    Return *duration* in two units, or in milliseconds where it is short: ``3d4h``, ``12.345s``.
    """
    if duration < timedelta(minutes=1):
        return f"{duration.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, duration = divmod(duration, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2])


def moment(at: datetime) -> str:
    """
    Return *at* in UTC, to the millisecond.
    """
    return at.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")


def print_json_array(values: Iterable[Any]) -> None:
    """
    Print *values* as a JSON array, a line for each as it comes.
    """
    separator = "["
    for value in values:
        click.echo(f"{separator}{to_json(value)}", nl=False)
        separator = ",\n "
    click.echo("[]" if separator == "[" else "]")


def print_facts(facts: Iterable[tuple[str, str | None]]) -> None:
    """
    Print names and values, one below the other; ``None`` is left out, and further lines of a value are indented.
    """
    known = [(name, safe_lines(text)) for name, text in facts if text is not None]
    room = max((len(name) for name, _ in known), default=0)
    for name, lines in known:
        for label, line in zip([name, *[""] * (len(lines) - 1)], lines, strict=True):
            click.echo(f"{label:{room}}{GAP}{line}".rstrip())


def _visible(character: str) -> str:
    """
    Return *character* as JSON writes it where it can't be printed.
    """
    if character.isprintable():
        return character
    return r"\u007f" if character == _DELETE else ascii_of(character)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):  # set on the one before
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
