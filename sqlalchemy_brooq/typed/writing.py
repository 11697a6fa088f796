"""
Writes objects of models as JSON values, wherever in a payload they stand.

What is outside of a model is left as it is: whether it is JSON is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from operator import is_
from types import NoneType
from typing import Any, Final

from sqlalchemy_brooq.errors import PayloadError
from sqlalchemy_brooq.typed.annotations import parameters_of
from sqlalchemy_brooq.typed.libraries import library_of
from sqlalchemy_brooq.typed.scalars import SCALARS

_PLAIN: Final = frozenset({str, int, float, bool, NoneType})


def written(payload: Any) -> Any:
    """
    Return *payload* with JSON values in the place of models' objects; the same object, if there are none.

    Raises:
        PayloadError: An object doesn't hold all that its class needs to be built again, or can't be written.
    """
    return _written(payload, _as_it_is)


def _written(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """
    Return *value* written; what is neither a model nor a container is up to *leaf*.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        pairs = {leaf(key): _written(item, leaf) for key, item in value.items()}
        return value if _same(value, pairs) and _same(value.values(), pairs.values()) else pairs
    if isinstance(value, list | tuple):
        items = [_written(item, leaf) for item in value]
        return value if _same(value, items) else items
    return _model(value) if _is_model(value) else leaf(value)


def _as_it_is(value: Any) -> Any:
    return value


def _same(old: Iterable[Any], new: Iterable[Any]) -> bool:
    return all(map(is_, old, new))


def _is_model(value: Any) -> bool:
    return not isinstance(value, type) and (is_dataclass(value) or library_of(type(value)) is not None)


def _model(value: Any) -> Any:
    model: Any = type(value)
    library = library_of(model)
    try:
        if library is not None:
            return library.write(value)
        return {name: _written(getattr(value, name), _in_a_model) for name in _kept(model)}
    except (TypeError, ValueError) as error:
        if isinstance(error, PayloadError):
            raise
        # Without the error's text, which may quote a value.
        raise PayloadError(f"a {model.__name__} can't be written as JSON: {type(error).__name__}") from error


def _in_a_model(value: Any) -> Any:
    """
    Return a field's value as it is read again.
    """
    if isinstance(value, Enum):
        return _written(value.value, _in_a_model)
    if isinstance(value, set | frozenset):
        return [_written(item, _in_a_model) for item in value]
    return next((scalar.write(value) for scalar in SCALARS if isinstance(value, scalar.type)), value)


@lru_cache
def _kept(model: Any) -> tuple[str, ...]:
    """
    Return the fields of a dataclass that its constructor takes.
    """
    kept = tuple(field.name for field in fields(model) if field.init)
    lost = [name for name, is_needed in parameters_of(model) if is_needed and name not in kept]
    if lost:
        raise PayloadError(f"a {model.__name__} can't be a payload: its constructor needs {lost[0]}, which is not kept")
    return kept
