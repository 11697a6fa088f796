"""
What annotations mean: their wrappings taken off, their strings resolved, and which of them name a model.

A model is a dataclass, a TypedDict, a msgspec Struct, or a pydantic model or dataclass.
"""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, is_dataclass
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy_brooq.typed.libraries import library_of

QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly"})
"""Of a TypedDict's keys. By name: typing_extensions has some of its own."""
UNIONS: Final = frozenset({Union, UnionType})

Scope = Mapping[str, Any]
"""Names that a string may mean beside those of its module: those of the function around a local class."""


class Unreadable(TypeError):  # noqa: N818 - names what was found
    """
    An annotation that no JSON value can be read into.
    """


class Hint(NamedTuple):
    """
    An annotation without its wrappings, and the qualifiers that were among them.
    """

    annotation: Any
    qualifiers: frozenset[str]


def unwrapped(annotation: Any) -> Hint:
    """
    Take off what says nothing about a value's form: ``Annotated``, ``NewType``, aliases, qualifiers, ``InitVar``.
    """
    qualifiers: set[str] = set()
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = annotation.__origin__
        elif (name := getattr(origin, "_name", None)) in QUALIFIERS:
            qualifiers.add(name)
            (annotation,) = get_args(annotation)
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, InitVar):
            annotation = annotation.type
        elif _is_alias(origin):  # of a generic `type X[T] = ...`
            annotation = origin.__value__[get_args(annotation)]
        elif _is_alias(annotation):
            annotation = annotation.__value__
        else:
            return Hint(annotation, frozenset(qualifiers))


def _is_alias(annotation: Any) -> bool:
    return type(annotation).__name__ == "TypeAliasType"  # typing's from 3.12 on, and typing_extensions'


def model_of(annotation: Any) -> type | None:
    """
    Return the class of the model that an unwrapped *annotation* names, if it names one.
    """
    found = get_origin(annotation) or annotation
    if isinstance(found, type) and (is_dataclass(found) or is_typed_dict(found) or library_of(found)):
        return found
    return None


def is_typed_dict(found: type) -> bool:
    """
    Tell whether *found* is a TypedDict; ``typing.is_typeddict`` knows none of typing_extensions.
    """
    return issubclass(found, dict) and hasattr(found, "__total__") and hasattr(found, "__required_keys__")


def names_models(annotation: Any) -> bool:
    """
    Tell whether *annotation* is a model, or a union of models; ``None`` may be among them.
    """
    annotation = unwrapped(annotation).annotation
    if get_origin(annotation) in UNIONS:
        return all(member is type(None) or names_models(member) for member in get_args(annotation))
    return model_of(annotation) is not None


def resolved(annotation: Any, names: Scope, scope: Scope) -> Any:
    """
    Return *annotation* with its strings replaced by what they say.

    Args:
        annotation: As it stands at a parameter.
        names: The globals of its module.
        scope: Names beyond these.

    Raises:
        Unreadable: A name in it has no meaning here.
    """

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(holder, dict(names), dict(scope), include_extras=True)["it"]
    except Exception as error:
        raise _unresolved(error) from error


def hints_of(annotation: Any, scope: Scope) -> dict[str, Any]:
    """
    Return the annotations of the fields of a model, resolved; what it is generic over is replaced by what it is given.

    Raises:
        Unreadable: A name in them has no meaning in the module of the class, nor in *scope*.
    """
    model = get_origin(annotation) or annotation
    try:
        try:
            hints = get_type_hints(model, include_extras=True)
        except NameError:
            hints = get_type_hints(model, localns={**scope, **vars(model)}, include_extras=True)
    except Exception as error:
        raise _unresolved(error) from error
    given = _bindings(model, get_args(annotation))
    owners = {name: one for one in reversed(model.__mro__) for name in inspect.get_annotations(one)}
    return {
        name: _bound(hint, ChainMap(given.get(owners.get(name), {}), *given.values())) for name, hint in hints.items()
    }


def parameters_of(dataclass: type) -> list[tuple[str, bool]]:
    """
    Return what *dataclass* is built of, and whether each has to be given.
    """
    found = inspect.signature(dataclass).parameters.values()
    return [
        (one.name, one.default is one.empty) for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def _unresolved(error: Exception) -> Unreadable:
    return Unreadable(
        f"its annotation can't be resolved ({type(error).__name__}: {error}):"
        " what it names has to be there by now, defined above or imported outside of `if TYPE_CHECKING`"
    )


def _bindings(model: type, arguments: Sequence[Any]) -> dict[Any, dict[Any, Any]]:
    """
    Return what *model*, and each generic class that it derives from, is given for its type variables.
    """
    found = {model: dict(zip(getattr(model, "__parameters__", ()), arguments, strict=False))}
    for one in model.__mro__:
        for base in vars(one).get("__orig_bases__", ()):
            parameters = getattr(get_origin(base), "__parameters__", ())
            given = [_bound(argument, found.get(one, {})) for argument in get_args(base)]
            found.setdefault(get_origin(base), dict(zip(parameters, given, strict=False)))
    return found


def _bound(annotation: Any, given: Mapping[Any, Any]) -> Any:
    if isinstance(annotation, TypeVar):
        return given.get(annotation, annotation)
    parameters = getattr(annotation, "__parameters__", ())
    if isinstance(annotation, type) or not given or not parameters:
        return annotation
    return annotation[tuple(given.get(parameter, parameter) for parameter in parameters)]
