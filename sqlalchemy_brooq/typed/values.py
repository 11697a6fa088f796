"""
How each kind of JSON value is read, and what is said of one that doesn't fit.

The readers of containers and models are put together in `reading`; nothing here looks at an annotation.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any, Final, NamedTuple

from sqlalchemy_brooq.typed.problems import HIDDEN, KEY, Mismatch, Problem, expected
from sqlalchemy_brooq.typed.scalars import SCALARS, Scalar

Reader = Callable[[Any], Any]
"""JSON value -> what it is read into. Raises a `Mismatch`."""

_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,999})")
_WRONG_CHOICE: Final = 1_000
"""Weight of a field that tells apart the members of a union: it outweighs what else is wrong."""
_MOST_NAMED: Final = 10


class Field(NamedTuple):
    """
    A field of a model.
    """

    name: str
    read: Reader
    required: bool


def read_any(value: Any) -> Any:
    """
    Take any value.
    """
    return value


def _read_null(value: Any) -> None:
    if value is not None:
        raise expected("null", value)


def _read_string(value: Any) -> str:
    if not isinstance(value, str):
        raise expected("a string", value)
    return value


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise expected("a boolean", value)
    return value


def _read_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected("a whole number", value)
    return value


def _read_float(value: Any) -> float:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise expected("a number within a float's range", value) from None
    raise expected("a number", value)


def _read_scalar(scalar: Scalar, value: Any) -> Any:
    if isinstance(value, scalar.type):  # made by the engine's json_deserializer
        return value
    if scalar.type is Decimal and isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)
    if isinstance(value, str):
        try:
            return scalar.read(value)
        except ValueError:
            pass
    raise expected(scalar.expected, value, in_strings=True)


#: What is read as it is, by the annotation. Found by identity: not every annotation has a hash.
SIMPLE: Final[Sequence[tuple[Any, Reader]]] = (
    (Any, read_any),
    (object, read_any),
    (None, _read_null),
    (NoneType, _read_null),
    (str, _read_string),
    (bool, _read_bool),
    (int, _read_int),
    (float, _read_float),
    *((scalar.type, partial(_read_scalar, scalar)) for scalar in SCALARS),
)


def whole_key(key: str) -> int:
    """
    Read the key of an object that stands for a number.
    """
    if _WHOLE.fullmatch(key) is None:
        raise expected("a whole number", key, in_strings=True)
    return int(key)


def literal(choices: Sequence[Any]) -> Reader:
    """
    Return what reads one of *choices*, and nothing else.
    """
    plain = [(choice.value if isinstance(choice, Enum) else choice, choice) for choice in choices]
    values = [value for value, _ in plain]
    what, in_strings = _one_of(values), any(isinstance(value, str) for value in values)

    def read(value: Any) -> Any:
        for one, choice in plain:
            if one == value and isinstance(one, bool) is isinstance(value, bool):
                return choice
        raise expected(what, value, in_strings=in_strings, weight=_WRONG_CHOICE)

    return read


def enum(kind: type[Enum]) -> Reader:
    """
    Return what reads a value of *kind* into its member.
    """
    values = [member.value for member in kind]
    what, in_strings = _one_of(values), any(isinstance(value, str) for value in values)

    def read(value: Any) -> Any:
        with contextlib.suppress(ValueError):
            member = kind(value)
            if isinstance(value, bool) is isinstance(member.value, bool):  # True is 1
                return member
        raise expected(what, value, in_strings=in_strings)

    return read


def _one_of(values: Sequence[Any]) -> str:
    """
    Return the values that code allows, as a text; they are no secret.
    """
    named = ", ".join(map(repr, values[:_MOST_NAMED]))
    more = "" if len(values) <= _MOST_NAMED else f" and {len(values) - _MOST_NAMED} more"
    return f"one of {named}{more}" if len(values) > 1 else named


def _gathered(parts: Iterable[tuple[str | int, Reader, Any]]) -> list[Any]:
    """
    Read the parts of a value, each behind the step that leads to it; what is wrong with them is told together.
    """
    found, problems = [], []
    for step, read, value in parts:
        try:
            found.append(read(value))
        except Mismatch as mismatch:
            problems += mismatch.under(f"[{step}]" if isinstance(step, int) else step)
    if problems:
        raise Mismatch(problems)
    return found


def read_list(build: Callable[[list[Any]], Any], item: Reader, value: Any) -> Any:
    """
    Read an array of any length into what *build* makes of a list.
    """
    if not isinstance(value, list):
        raise expected("an array", value)
    return build(_gathered((place, item, one) for place, one in enumerate(value)))


def read_tuple(items: Sequence[Reader], value: Any) -> tuple[Any, ...]:
    """
    Read an array that has a reader of its own for each place.
    """
    if not isinstance(value, list):
        raise expected("an array", value)
    if len(value) != len(items):
        raise Mismatch([Problem("", f"expected an array of {len(items)}, got one of {len(value)}")])
    return tuple(_gathered((place, item, one) for place, (item, one) in enumerate(zip(items, value, strict=True))))


def read_mapping(key: Reader, item: Reader, value: Any) -> dict[Any, Any]:
    """
    Read an object whose keys are data.
    """
    if not isinstance(value, dict):
        raise expected("an object", value)
    keys = _gathered((KEY, key, name) for name in value)
    return dict(zip(keys, _gathered((HIDDEN, item, one) for one in value.values()), strict=True))


def read_object(name: str, fields: Sequence[Field], build: Callable[[dict[str, Any]], Any], value: Any) -> Any:
    """
    Read an object into what *build* makes of its fields, and leave out what no field is called.
    """
    if not isinstance(value, dict):
        raise expected(f"an object ({name})", value)
    found, problems = {}, []
    for field in fields:
        if field.name in value:
            try:
                found[field.name] = field.read(value[field.name])
            except Mismatch as mismatch:
                problems += mismatch.under(field.name)
        elif field.required:
            problems.append(Problem(field.name, "missing"))
    if problems:
        raise Mismatch(problems)
    return build(found)


def built(model: Callable[..., Any], found: dict[str, Any]) -> Any:
    """
    Build an object of a dataclass, which may have a closer look at its fields.
    """
    try:
        return model(**found)
    except ValueError as error:  # what __post_init__ found
        raise Mismatch([Problem("", str(error) or type(error).__name__)]) from error


def read_union(members: Sequence[Reader], value: Any) -> Any:
    """
    Read a value into the first of *members* that it fits.
    """
    failures: list[Mismatch] = []
    for read in members:
        try:
            return read(value)
        except Mismatch as mismatch:
            failures.append(mismatch)
    raise _closest(failures, value)


def _closest(failures: Sequence[Mismatch], value: Any) -> Mismatch:
    """
    Return what to say where no member of a union fits: about the one that was meant, if that can be told.
    """
    inside = [one for one in failures if any(problem.path or not problem.expected for problem in one.problems)]
    if inside:
        return min(inside, key=lambda failure: sum(problem.weight for problem in failure.problems))
    whats = dict.fromkeys(problem.expected for failure in failures for problem in failure.problems)
    return expected(" or ".join(filter(None, whats)), value)
