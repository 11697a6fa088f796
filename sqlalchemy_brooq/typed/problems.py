"""
What is wrong with a JSON value, and where: by the names of fields and types, never by what the value holds.

A payload may hold what must not get into a log or into ``last_error``; so nothing here takes a value for its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

HIDDEN: Final = "[…]"
"""Stands in a path for the key of a mapping, which is data."""
KEY: Final = "[key]"
"""Stands in a path for such a key where it is itself what is wrong."""
ROOT: Final = "payload"
"""What the whole value is called."""
_MOST: Final = 20
"""Problems that are told; a list of a million can be wrong a million times."""
_JSON: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class Problem(NamedTuple):
    """
    One thing that is wrong.
    """

    path: str
    text: str
    expected: str = ""
    """What stands after "expected" in the text, if that is all it says."""
    weight: int = 1
    """How much it speaks against this being the right one of several types."""


class Mismatch(Exception):  # noqa: N818 - found, not suffered
    """
    A value is not what an annotation says.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        super().__init__()
        self.problems = list(problems)

    def under(self, step: str) -> list[Problem]:
        """
        Return the problems as seen from outside, where *step* leads to the value.
        """
        return [problem._replace(path=joined(step, problem.path)) for problem in self.problems]

    def texts(self) -> list[str]:
        """
        Return one line about each problem.
        """
        lines = [f"{problem.path or ROOT}: {problem.text}" for problem in self.problems[:_MOST]]
        more = len(self.problems) - len(lines)
        return [*lines, f"and {more} more"] if more else lines


def joined(step: str, path: str) -> str:
    """
    Return *path* behind *step*: ``items`` and ``[2].price`` are ``items[2].price``.
    """
    return f"{step}.{path}" if path and not path.startswith("[") else step + path


def expected(what: str, value: Any, *, in_strings: bool = False, weight: int = 1) -> Mismatch:
    """
    Return what to raise at *value*, where *what* should be.

    Args:
        what: What the annotation asks for.
        value: What is there instead.
        in_strings: Some strings are *what*: then this one is "another string".
        weight: See `Problem`.
    """
    got = "another string" if in_strings and isinstance(value, str) else given(value)
    return Mismatch([Problem("", f"expected {what}, got {got}", what, weight)])


def given(value: Any) -> str:
    """
    Return the type of *value* in JSON's words, and not a word of what it holds.
    """
    return _JSON.get(type(value), type(value).__name__)
