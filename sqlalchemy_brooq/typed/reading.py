"""
Reads JSON values into what an annotation says: models, and what their fields are made of.

For dataclasses and TypedDicts the rules are ours, and strict: a string is no number, and a boolean neither. A key that
no field has is left out. What an annotation asks for is settled when its reader is made: one that no JSON value could
satisfy is refused then.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from sqlalchemy_brooq.errors import InvalidPayload
from sqlalchemy_brooq.typed import values
from sqlalchemy_brooq.typed.annotations import (
    UNIONS,
    Scope,
    Unreadable,
    hints_of,
    is_typed_dict,
    model_of,
    parameters_of,
    unwrapped,
)
from sqlalchemy_brooq.typed.libraries import library_of
from sqlalchemy_brooq.typed.problems import ROOT, Mismatch
from sqlalchemy_brooq.typed.values import Field, Reader

T = TypeVar("T")

_MAPPINGS: Final = (dict, abc.Mapping, abc.MutableMapping)
_COLLECTIONS: Final[Sequence[tuple[Any, Callable[[list[Any]], Any]]]] = (
    *((kind, list) for kind in (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)),
    *((kind, set) for kind in (set, abc.MutableSet)),
    *((kind, frozenset) for kind in (frozenset, abc.Set)),
    (tuple, tuple),
)


def reader_of(annotation: Any, scope: Scope) -> Reader:
    """
    Return what reads a JSON value into *annotation*; it raises `InvalidPayload`, which names each field that is wrong.

    Args:
        annotation: One that names models.
        scope: What its strings may mean beside the names of their modules.

    Raises:
        Unreadable: No JSON value can be read into it.
    """
    reader = _Readers(scope).reader(annotation)

    def read(value: Any) -> Any:
        try:
            return reader(value)
        except Mismatch as mismatch:
            problems = mismatch.texts()
        except RecursionError:
            problems = [f"{ROOT}: nested too deeply"]
        raise InvalidPayload(*problems)

    return read


class _Readers:
    """
    Makes readers; those of models are made once, as a model may contain itself.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._made: dict[Any, Reader] = {}

    def reader(self, annotation: Any) -> Reader:
        """
        Return the reader of any annotation.
        """
        is_named = model_of(annotation) is not None or type(annotation).__name__ == "TypeAliasType"
        if not is_named or not _has_hash(annotation):
            return self._made_of(annotation)
        if annotation not in self._made:
            self._made[annotation] = partial(self._read_later, annotation)  # where it contains itself
            self._made[annotation] = self._made_of(annotation)
        return self._made[annotation]

    def _read_later(self, annotation: Any, value: Any) -> Any:
        return self._made[annotation](value)

    def _made_of(self, annotation: Any) -> Reader:
        inner = unwrapped(annotation).annotation
        if inner is not annotation:
            return self.reader(inner)
        if model_of(annotation) is not None:
            return self._model(annotation)
        if (simple := _found(annotation, values.SIMPLE)) is not None:
            return simple
        if (origin := get_origin(annotation)) is Literal or origin in UNIONS:
            return (values.literal if origin is Literal else self._union)(get_args(annotation))
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return _enum(annotation)
        return self._variable(annotation) if isinstance(annotation, TypeVar) else self._container(annotation)

    def _union(self, members: Sequence[Any]) -> Reader:
        return partial(values.read_union, [self.reader(member) for member in members])

    def _variable(self, variable: TypeVar) -> Reader:
        """
        Go by what a type variable may at most be, where nothing else was given for it.
        """
        if variable.__constraints__:
            return self._union(variable.__constraints__)
        return self.reader(Any if variable.__bound__ is None else variable.__bound__)

    def _container(self, annotation: Any) -> Reader:
        kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
        if kind is tuple and get_origin(annotation) and arguments[1:] != (...,):
            return partial(values.read_tuple, [self.reader(argument) for argument in arguments])
        if kind in _MAPPINGS:
            key, item = arguments or (Any, Any)
            key_reader = values.whole_key if unwrapped(key).annotation is int else self.reader(key)
            return partial(values.read_mapping, key_reader, self.reader(item))
        if (build := _found(kind, _COLLECTIONS)) is not None:
            return partial(values.read_list, build, self.reader(arguments[0] if arguments else Any))
        raise Unreadable(f"no JSON value can be read into {_shown(annotation)}")

    # -- models

    def _model(self, annotation: Any) -> Reader:
        model: Any = get_origin(annotation) or annotation
        library = library_of(model)
        if library is None:
            return self._own_model(annotation)
        try:
            return library.reader(annotation)
        except Exception as error:
            raise Unreadable(f"{model.__qualname__}: {type(error).__name__}: {error}") from error

    def _own_model(self, annotation: Any) -> Reader:
        model: Any = get_origin(annotation) or annotation
        try:
            hints = hints_of(annotation, self._scope)
        except Unreadable as error:
            raise Unreadable(f"{model.__qualname__}: {error}") from error
        build: Callable[[dict[str, Any]], Any]
        if is_typed_dict(model):
            needed, build = [(name, _is_required(model, name, hint)) for name, hint in hints.items()], dict
        else:
            needed, build = parameters_of(model), partial(values.built, model)
        fields = [self._field(model, name, hints, is_needed) for name, is_needed in needed]
        return partial(values.read_object, model.__name__, fields, build)

    def _field(self, model: type, name: str, hints: dict[str, Any], required: bool) -> Field:
        if name not in hints:
            raise Unreadable(f"{model.__qualname__}.{name} has no annotation")
        try:
            return Field(name, self.reader(hints[name]), required)
        except Unreadable as error:
            raise Unreadable(f"{model.__qualname__}.{name}: {error}") from error


def _is_required(model: Any, name: str, hint: Any) -> bool:
    """
    Tell whether a TypedDict needs the key *name*: its qualifier goes first, which the class can't see in a string.
    """
    qualifiers = unwrapped(hint).qualifiers
    return "Required" in qualifiers or ("NotRequired" not in qualifiers and name in model.__required_keys__)


def _enum(kind: type[Enum]) -> Reader:
    for member in kind:
        if not isinstance(member.value, str | int | float | None):
            raise Unreadable(f"{_shown(kind)} has the value {member.value!r}, which no JSON value is equal to")
    return values.enum(kind)


def _found(key: Any, table: Sequence[tuple[Any, T]]) -> T | None:
    return next((value for one, value in table if one is key), None)


def _has_hash(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:  # what stands in an Annotated may have none
        return False
    return True


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)
