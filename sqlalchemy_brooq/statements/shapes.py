"""
Shapes that several statements share: rows from arrays, and rows named by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    Select,
    Text,
    TypeDecorator,
    Uuid,
    case,
    cast,
    column,
    func,
    literal_column,
    null,
)
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

MOMENT: Final = DateTime(timezone=True)


class Packed(TypeDecorator[Sequence[Any]]):
    """
    An array parameter that is sent as its text: drivers take several times as long over a list of values.

    Args:
        item: The type of the array's items.
        as_text: Returns the text of an item; it must not contain what an array literal needs quoted.
    """

    impl = Text
    cache_ok = True

    def __init__(self, item: TypeEngine[Any], as_text: Callable[[Any], str]) -> None:
        super().__init__()
        self.item = item
        self.as_text = as_text

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - the base class's signature
        """
        Return the array literal.
        """
        if not value:
            return None if value is None else "{}"
        return '{"' + '","'.join(map(self.as_text, value)) + '"}'

    def bind_expression(self, bindparam: Any) -> ColumnElement[Any]:
        """
        Return the array itself.
        """
        return cast(bindparam, ARRAY(self.item))


IDS: Final = Packed(Uuid(), attrgetter("hex"))  # without the hyphens, which take longer to make
MOMENTS: Final = Packed(MOMENT, str)
NUMBERS: Final = Packed(Integer(), str)
WORDS: Final = Packed(Text(), str)
"""For topics, whose alphabet is harmless; not for text at large."""


#: What names a claim, beside its worker.
CLAIM_KEY: Final[dict[str, TypeEngine[Any]]] = {"id": IDS, "claimed_at": MOMENTS}


def rows_of(
    name: str,
    columns: Mapping[str, TypeEngine[Any]],
    *,
    numbered: bool = False,
) -> TableValuedAlias:
    """
    Return rows made of one array parameter a column, so that any number of rows is one statement text.

    An array that is shorter than the others is filled up with NULL.

    Args:
        name: The rows' name in the statement; the parameters are called ``<name>_<column>``.
        columns: The columns' names and types, in order; of type `Packed` what comes in great numbers.
        numbered: Whether a column ``n`` counts the rows from 1.
    """
    arrays: list[Any] = []
    typed: list[Any] = []
    for key, kind in columns.items():
        arrays.append(bind(f"{name}_{key}", type_=kind if isinstance(kind, Packed) else ARRAY(kind)))
        typed.append(column(key, kind.item if isinstance(kind, Packed) else kind))
    if numbered:
        return func.unnest(*arrays).table_valued(*typed, with_ordinality="n", name=name).render_derived()
    return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()


def among(target: ColumnElement[Any], ids: Select[Any]) -> ColumnElement[bool]:
    """
    Match *target* against the rows of *ids* as one array.

    A join would do the same, but on a young table the planner reads all of it for a hash join.
    """
    return target == func.any(func.array(ids.scalar_subquery()))


def readable(moment: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """
    Return *moment*, which is not NULL, within the years that Python knows: plain SQL may write ``-infinity``, say.
    """
    first, last = (cast(literal_column(f"'{year}-06-01Z'"), MOMENT) for year in ("0001", "9999"))
    return func.greatest(func.least(moment, last, type_=MOMENT), first, type_=MOMENT)


def known(moment: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """
    Return *moment* as Python can read it, where there is one.
    """
    return case((moment.is_(None), null()), else_=readable(moment))
