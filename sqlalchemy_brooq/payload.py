"""
What ``jsonb`` can hold: checks a payload and copies it, before any SQL is sent.

The queue never looks inside a payload (invariant 5); this module only asks whether PostgreSQL will take it.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy_brooq.errors import PayloadError
from sqlalchemy_brooq.typed.writing import written

MAX_DEPTH: Final = 500
"""Levels of nesting. Python's decoder, which every worker runs, gives up below a thousand."""
MAX_SIZE: Final = 2**28 - 1
"""Bytes that jsonb has room for."""

_NUL_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_ESCAPED_SURROGATE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")

_PAYLOAD: Final = "the payload"
"""What a refusal calls the value, unless it is another."""
EMPTY: Final = object()
"""Stands for a payload that was not given."""

Serializer = Callable[[Any], str]


def copied(payload: Any) -> Any:
    """
    Return a copy of *payload* as ``jsonb`` will give it back.

    Objects of dataclasses, and of classes of pydantic and msgspec, are written as JSON. A value that only the
    engine's own serializer may know (a ``datetime``, say) is copied as it is; `encoded` decides about it when the job
    is written.

    Raises:
        PayloadError: ``jsonb`` can't hold it, whatever the serializer.
    """
    try:
        return json.loads(_encoded(payload))
    except _ForeignType:
        plain = _without_models(payload)
        if plain is not payload:
            return copied(plain)
        _refuse_what_no_serializer_mends(payload)
        return _deep_copy(payload)


def encoded(payload: Any, serializer: Serializer | None = None, what: str = _PAYLOAD) -> str:
    """
    Return *payload* as JSON text that ``jsonb`` accepts.

    Args:
        payload: Any JSON value.
        serializer: The engine's ``json_serializer``; ``None`` means the standard library's.
        what: What a refusal calls the value.

    Raises:
        PayloadError: ``jsonb`` can't hold it, or the serializer refuses it.
    """
    try:
        return _encoded(payload, serializer, what)
    except _ForeignType as error:
        plain = _without_models(payload, what)
        if plain is not payload:
            return encoded(plain, serializer, what)
        raise PayloadError(str(error)) from error.__cause__


def _without_models(payload: Any, what: str = _PAYLOAD) -> Any:
    try:
        return written(payload)
    except RecursionError as error:
        raise _too_deep(what) from error


def _encoded(payload: Any, serializer: Serializer | None = None, what: str = _PAYLOAD) -> str:
    try:
        text = serializer(payload) if serializer else _dumps(payload)
    except RecursionError as error:
        raise _too_deep(what) from error
    except TypeError as error:
        raise _ForeignType(f"{what} is not JSON: {error}") from error
    except ValueError as error:
        raise PayloadError(f"{what} is not JSON: {error}") from error
    except Exception as error:
        raise PayloadError(f"the engine's json_serializer refused {what}: {error}") from error
    if serializer:
        _check_json(text, what)
    return _accepted(text, what)


def _deep_copy(payload: Any) -> Any:
    try:
        return copy.deepcopy(payload)
    except Exception as error:
        raise PayloadError(f"the payload is not JSON, and can't be copied: {error}") from error


class _ForeignType(PayloadError):  # noqa: N818 - names what was found
    """
    A type that the standard library doesn't encode; the engine's serializer may.
    """


#: Made once: ``json.dumps`` with these options would make one for each job.
_dumps: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def _check_json(text: Any, what: str) -> None:
    """
    Refuse what a serializer of the consumer's wrote, if it isn't JSON text.
    """
    if not isinstance(text, str):
        raise PayloadError(f"the engine's json_serializer returned {type(text).__name__}, where SQLAlchemy takes text")
    try:
        json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise _too_deep(what) from error
    except ValueError as error:
        raise PayloadError(f"the engine's json_serializer didn't write JSON: {error}") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"the number {number} is beyond a double's range")
    return value


def _accepted(text: str, what: str) -> str:
    """
    Return *text* if it holds nothing that ``jsonb`` refuses.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise _too_deep(what)
    if "\\u" in text:
        if _NUL_ESCAPE.search(text):
            raise PayloadError(rf"{what} has a string with a NUL character (\u0000), which jsonb can't hold")
        if _ESCAPED_SURROGATE.search(text):
            text = _dumps(json.loads(text))
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.start + 1]
        raise PayloadError(f"{what} has a string with a lone surrogate ({found!a}), which jsonb can't hold") from error
    if size > MAX_SIZE:
        raise PayloadError(f"{what} has {size} bytes: jsonb takes at most {MAX_SIZE}")
    return text


def _depth(text: str) -> int:
    """
    Return how deep the arrays and objects of JSON *text* nest.
    """
    deepest = depth = 0
    quoted = escaped = False
    for character in text:
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _too_deep(what: str = _PAYLOAD) -> PayloadError:
    return PayloadError(f"{what} is nested too deeply or contains itself: at most {MAX_DEPTH} levels are taken")


def _refuse_what_no_serializer_mends(payload: Any) -> None:
    """
    Look for strings and numbers that ``jsonb`` refuses in a payload that we can't encode ourselves.
    """
    for leaf in _leaves(payload):
        if isinstance(leaf, str) or type(leaf) is float:  # what derives from float, a serializer may write otherwise
            encoded(leaf)


def _leaves(payload: Any) -> Iterator[Any]:
    stack: list[tuple[Any, int]] = [(payload, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, dict):
            stack.extend((item, depth + 1) for pair in value.items() for item in pair)
        elif isinstance(value, list | tuple):
            stack.extend((item, depth + 1) for item in value)
        else:
            yield value
