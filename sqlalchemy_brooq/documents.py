"""
JSON as text: values that are never decoded, since that could change a number, and what is hidden in them.

Knows nothing of jobs, nor who may see what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

HIDDEN: Final = "•••"
"""What stands in the place of a value that is not shown."""

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++')
"""A token of JSON, which is known to be valid; what lies between two is white space."""
_PLACE: Final = re.compile(r"\s*[+-]?\d+\s*")
"""What PostgreSQL takes for a place in an array, and more."""
_SEPARATORS: Final = (",", ":")
_BEGINNINGS: Final = ("{", "[")
_ENDS: Final = ("}", "]")


@dataclass(frozen=True, slots=True)
class RawJson:
    """
    A JSON value as its text, which is never decoded here: that could change a number.
    """

    text: str


def to_json(value: Any, *, indent: int | None = None) -> str:
    """
    Return *value* as JSON in ASCII, so that it passes any encoding; the `RawJson` in it is taken as it is.
    """
    held: dict[str, str] = {}

    def hold(raw: Any) -> str:
        if not isinstance(raw, RawJson):
            raise TypeError(f"{type(raw).__name__} has no JSON")
        token = token_hex(16)
        held[token] = _NOT_ASCII.sub(lambda found: ascii_of(found[0]), raw.text)
        return token

    text = json.dumps(value, default=hold, indent=indent)
    if not held:
        return text
    return re.sub(f'"({"|".join(held)})"', lambda found: held[found[1]], text)


def ascii_of(character: str) -> str:
    """
    Return *character* as JSON writes it in ASCII.
    """
    return json.dumps(character)[1:-1]


class Masks:
    """
    Names of fields whose values are not shown.

    Args:
        names: A name is hidden wherever it stands, in upper or lower case. One with dots, such as ``card.number``, is a
            path: it is hidden where these names follow one another; places in arrays don't count.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, str):
            raise TypeError(f"masks are several names, such as [{names!r}], not one text")
        self._paths = frozenset(tuple(name.casefold().split(".")) for name in names)
        self._lengths = sorted({len(path) for path in self._paths})

    def __bool__(self) -> bool:
        return bool(self._paths)

    def cover(self, path: Sequence[str]) -> bool:
        """
        Tell whether the value that the names of *path* lead to may be hidden, by itself or with what it is part of.

        A number may be a name or a place in an array, which the path alone doesn't tell: it is taken for both.
        """
        names = [(name.casefold(), _PLACE.fullmatch(name) is not None) for name in path]
        return any(_leads_through(names, mask) for mask in self._paths)

    def end(self, path: Sequence[str]) -> bool:
        """
        Tell whether the last names of *path* are those of a value that is hidden.
        """
        names = tuple(name.casefold() for name in path[-self._lengths[-1] :]) if self._lengths else ()
        return any(names[-length:] in self._paths for length in self._lengths)

    def applied(self, document: RawJson) -> RawJson:
        """
        Return *document* with the values hidden, and otherwise as it is, to the last space.
        """
        if not self._paths:
            return document
        parts, copied = [], 0
        for begin, end in _values(document.text, self.end):
            parts += [document.text[copied:begin], json.dumps(HIDDEN, ensure_ascii=False)]
            copied = end
        return RawJson("".join([*parts, document.text[copied:]]))


def _leads_through(names: Sequence[tuple[str, bool]], mask: Sequence[str]) -> bool:
    """
    Tell whether the names of *mask* follow one another in *names*, where those that may be places may be passed over.
    """
    reached: set[int] = set()  # how many names of the mask may have been met so far
    for name, may_be_place in names:
        met = {count + 1 for count in {0, *reached} if mask[count] == name}
        if len(mask) in met:
            return True
        reached = met | reached if may_be_place else met
    return False


class _Reader:
    """
    Knows where in a document one is. A loop, as JSON may be nested deeper than Python can call functions.
    """

    def __init__(self) -> None:
        self._objects: list[bool] = []  # of each object or array that is open, whether it is an object
        self._names: list[str | None] = []  # and what its value is called that is being read
        self.path: list[str] = []
        """Those of these names that are none of an array's."""
        self._awaits_name = False

    @property
    def depth(self) -> int:
        """
        How many objects and arrays are open.
        """
        return len(self._objects)

    @property
    def is_named(self) -> bool:
        """
        Whether the value that comes next has a name of its own.
        """
        return bool(self._objects) and self._objects[-1]

    def begins_value(self, part: str) -> bool:
        """
        Read *part* if it is a name or separates values, and tell whether it is neither.
        """
        if part in _SEPARATORS:
            self._awaits_name = part == "," and self._objects[-1]
        elif self._awaits_name and part not in _ENDS:
            self._forget_name()
            name: str = json.loads(part)
            self._names[-1] = name
            self.path.append(name)
            self._awaits_name = False
        else:
            return part not in _ENDS
        return False

    def open(self, part: str) -> None:
        """
        Go into the object or array that *part* begins.
        """
        self._objects.append(part == "{")
        self._names.append(None)
        self._awaits_name = part == "{"

    def close(self) -> None:
        """
        Come out of the object or array that is open.
        """
        self._forget_name()
        self._names.pop()
        self._objects.pop()
        self._awaits_name = False

    def _forget_name(self) -> None:
        if self._names[-1] is not None:
            self.path.pop()


def _values(text: str, is_wanted: Callable[[Sequence[str]], bool]) -> Iterator[tuple[int, int]]:
    """
    Yield where in *text* the values begin and end whose names are wanted; what is within them is not looked at.
    """
    reader = _Reader()
    wanted: tuple[int, int] | None = None  # how many are open around the value, and where it begins
    for found in _TOKEN.finditer(text):
        part = found[0]
        if reader.begins_value(part):
            if wanted is None and reader.is_named and is_wanted(reader.path):
                wanted = reader.depth, found.start()
            if part in _BEGINNINGS:
                reader.open(part)
                continue
        elif part in _ENDS:
            reader.close()
        else:
            continue
        if wanted is not None and wanted[0] == reader.depth:
            yield wanted[1], found.end()
            wanted = None
