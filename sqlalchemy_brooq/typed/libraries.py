"""
Classes of pydantic and msgspec: read and written by the library that made them, by its own rules.

Neither is imported here. A class of theirs can only be there once they are, so they are looked for among the modules
that are loaded; who uses neither pays for neither.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy_brooq.typed.problems import HIDDEN, KEY, Mismatch, Problem, given, joined

_VALUE_TOLD: Final = re.compile(r"Invalid (?:enum )?value(?= )")
"""Texts of msgspec's that go on with the value."""
_EXTRA: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""Errors of pydantic's about a key that should not be there: only they tell one that is no field's."""
_SELF_EXPLAINING: Final = _EXTRA | {"missing", "value_error", "assertion_error"}
"""Errors of pydantic's to which the type of what was found adds nothing."""


class Library(NamedTuple):
    """
    How a library reads and writes objects of its classes.
    """

    reader: Callable[[Any], Callable[[Any], Any]]
    """Annotation -> what makes an object of a JSON value, or raises a `Mismatch`."""
    write: Callable[[Any], Any]
    """Object -> JSON value."""


def library_of(model: type) -> Library | None:
    """
    Return the library that made the class *model*, if it is one of the two.
    """
    if issubclass(model, _named("msgspec", "Struct")):
        return MSGSPEC
    if issubclass(model, _named("pydantic", "BaseModel")) or _is_pydantic_dataclass(model):
        return PYDANTIC
    return None


def _named(module: str, name: str) -> Any:
    """
    Return the class *name* of a module that is loaded; otherwise something that no class is a subclass of.
    """
    return getattr(sys.modules.get(module), name, ())


def _is_pydantic_dataclass(model: type) -> bool:
    tell = getattr(sys.modules.get("pydantic.dataclasses"), "is_pydantic_dataclass", None)
    return tell is not None and bool(tell(model))


# -- msgspec


def _msgspec_reader(annotation: Any) -> Callable[[Any], Any]:
    msgspec: Any = sys.modules["msgspec"]
    msgspec.json.Decoder(annotation)  # resolves what it names, and raises where it can't be read

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, annotation, str_keys=True)
        except msgspec.ValidationError as error:
            raise Mismatch([_told_by_msgspec(str(error))]) from None

    return read


def _told_by_msgspec(said: str) -> Problem:
    """
    Return what *said* says, such as "Expected `int`, got `str` - at `$.items[...].price`", without a value in it.
    """
    text, at, place = said.rpartition(" - at ")
    if not at:
        text, place = said, ""
    told = _VALUE_TOLD.match(text)
    in_key = place.startswith("`key` in ")
    path = place.removeprefix("`key` in ").strip("`").removeprefix("$").removeprefix(".").replace("[...]", HIDDEN)
    return Problem(path + KEY if in_key else path, told[0] if told else text)


def _msgspec_write(value: Any) -> Any:
    msgspec: Any = sys.modules["msgspec"]
    return msgspec.to_builtins(value, str_keys=True)


# -- pydantic


def _pydantic_reader(annotation: Any) -> Callable[[Any], Any]:
    pydantic: Any = sys.modules["pydantic"]
    if hasattr(annotation, "model_rebuild"):  # a dataclass of pydantic's raises by itself
        annotation.model_rebuild()  # raises if it names what isn't there
    adapter = pydantic.TypeAdapter(annotation)
    names = functools.cache(lambda: _field_names(adapter))

    def validated(value: Any) -> Any:
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):  # the engine's json_deserializer made something else of it
            return adapter.validate_python(value)
        return adapter.validate_json(text)  # only there a strict model takes a string for a date

    def read(value: Any) -> Any:
        try:
            return validated(value)
        except pydantic.ValidationError as error:
            told = error.errors(include_url=False)
        raise Mismatch([_told_by_pydantic(one, value, names()) for one in told])

    return read


def _told_by_pydantic(error: Mapping[str, Any], value: Any, names: frozenset[str] | None) -> Problem:
    kind, text, where = error["type"], error["msg"], error["loc"]
    if kind == "union_tag_invalid":  # the text says which tag was found
        text = f"Input tag is none of the expected ones, {error['ctx']['expected_tags']}"
    if kind not in _SELF_EXPLAINING:
        text = f"{text}, got {given(error['input'])}"
    path = ""
    for place, step in enumerate(where):
        is_key = isinstance(value, dict) and step in value
        is_last = place == len(where) - 1
        if is_key and not _is_name(step, names) and not (is_last and kind in _EXTRA):
            shown = HIDDEN
        else:
            shown = f"[{step}]" if isinstance(step, int) else step
        path = joined(path, shown) if path else shown
        value = value[step] if is_key or (isinstance(value, list) and isinstance(step, int)) else value
    return Problem(path, text)


def _is_name(key: str, names: frozenset[str] | None) -> bool:
    return key.isidentifier() if names is None else key in names


def _field_names(adapter: Any) -> frozenset[str] | None:
    """
    Return the names of all fields that *adapter* knows, or ``None`` if it can't tell. Other keys in a path are data.
    """
    try:
        schema = adapter.json_schema()
    except Exception:  # noqa: BLE001 - validators of the consumer's may have no schema, and any way to say so
        return None
    parts = (schema, *schema.get("$defs", {}).values())
    return frozenset(name for part in parts for name in part.get("properties", ()))


@functools.lru_cache
def _adapter(model: Any) -> Any:
    pydantic: Any = sys.modules["pydantic"]
    return pydantic.TypeAdapter(model)


def _pydantic_write(value: Any) -> Any:
    model: Any = type(value)
    return _adapter(model).dump_python(value, mode="json", by_alias=True, round_trip=True)


MSGSPEC: Final = Library(_msgspec_reader, _msgspec_write)
PYDANTIC: Final = Library(_pydantic_reader, _pydantic_write)
