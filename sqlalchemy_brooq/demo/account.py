"""
The account: what the demo tells, as it happens, in 80 columns.

Owns the layout, and the asking of what is shown: a statement is printed as a person would type it, then its answer.
Decides nothing about what is worth telling.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from numbers import Number
from textwrap import dedent, fill, indent, wrap
from typing import Any, Final, TextIO

from sqlalchemy import Engine, Row, text

WIDTH: Final = 80
MARGIN: Final = " " * 8
"""What everything but headings is indented by; the time stands there."""
PROMPT: Final = "=> "
NARROWEST: Final = 8
"""Characters to which no column is cut down further."""

_BOLD, _DIM, _RED, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[0m"


class Account:
    """
    Writes the account to *out*, line by line.

    Args:
        out: Where it goes. It is coloured if that is a terminal, unless ``NO_COLOR`` is set.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()
        self._after_blank = False
        self.has_begun = False
        """Whether anything was told."""
        self._is_coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def elapsed(self) -> float:
        """
        Seconds since the beginning.
        """
        return time.monotonic() - self._began

    def title(self, words: str) -> None:
        """
        Begin with a title.
        """
        self._write(self._in(_BOLD, words), "=" * len(words))

    def scene(self, words: str) -> None:
        """
        Begin a scene.
        """
        self._write("", self._in(_BOLD, words), "-" * len(words), "")

    def say(self, words: str) -> None:
        """
        Tell something, with the time at which it is told.
        """
        first, *more = wrap(words, WIDTH - len(MARGIN))
        self._write(f"{self._time()}{first}", *(f"{MARGIN}{line}" for line in more))

    def note(self, words: str) -> None:
        """
        Tell something that has no time of its own.
        """
        self._write(fill(words, WIDTH, initial_indent=MARGIN, subsequent_indent=MARGIN))

    def code(self, source: str) -> None:
        """
        Show a piece of Python.
        """
        self._write("", indent(dedent(source).strip("\n"), MARGIN + "    "), "")

    def ask(self, engine: Engine, statement: str) -> Sequence[Row[Any]]:
        """
        Show *statement* and its answer, and return the answer.
        """
        typed = dedent(statement).strip()
        with engine.connect() as connection:
            result = connection.execute(text(typed.replace(":", r"\:")))
            rows, names = result.all(), list(result.keys())
        first, *more = f"{typed};".splitlines()
        prompted = [MARGIN + PROMPT + first, *(MARGIN + " " * len(PROMPT) + line for line in more)]
        self._write("", *(self._in(_DIM, line) for line in prompted))
        self.table(names, rows)
        self._write("")
        return rows

    def table(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """
        Show a table in the way of psql.
        """
        self._write(*(MARGIN + line for line in table_lines(names, rows)))

    def verdict(self, names: Sequence[str], rows: Sequence[tuple[Sequence[Any], bool]]) -> None:
        """
        Show a table whose rows are good or bad; the bad ones are marked.
        """
        head, rule, *body = table_lines(names, [cells for cells, _ in rows])
        marked = [line if is_good else self._in(_RED, line) for line, (_, is_good) in zip(body, rows, strict=False)]
        self._write(*(MARGIN + line for line in (head, rule, *marked)))

    def _time(self) -> str:
        return f"{self.elapsed:5.1f}s  "

    def _in(self, colour: str, words: str) -> str:
        return f"{colour}{words}{_PLAIN}" if self._is_coloured else words

    def _write(self, *lines: str) -> None:
        self.has_begun = True
        for line in lines:
            if line or not self._after_blank:  # one blank line is enough
                self._out.write(f"{line.rstrip()}\n")
            self._after_blank = not line
        self._out.flush()


def table_lines(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """
    Yield the lines of a table: heads, a rule, the rows, and their number where there are none.
    """
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    widths = _fitting([max(len(cell) for cell in column) for column in zip(names, *cells, strict=True)])
    is_number = [all(isinstance(value, Number) for value in column) for column in zip(*rows, strict=True)]
    yield " " + " | ".join(name.center(width) for name, width in zip(names, widths, strict=True))
    yield "-" + "-+-".join("-" * width for width in widths) + "-"
    for row in cells:
        yield " " + " | ".join(
            cell.rjust(width) if right else _cut(cell, width).ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        )
    if not rows:
        yield "(0 rows)"


def _fitting(widths: Sequence[int]) -> list[int]:
    """
    Return *widths* with the widest cut down until the table fits.
    """
    fitting = list(widths)
    room = WIDTH - len(MARGIN) - 3 * len(fitting)
    while sum(fitting) > room and max(fitting) > NARROWEST:
        fitting[fitting.index(max(fitting))] -= 1
    return fitting


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 3]}..."
