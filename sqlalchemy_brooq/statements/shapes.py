"""
Shapes that several statements share: rows from arrays, and rows named by their ids.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, column, func
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine


def rows_of(name: str, columns: dict[str, TypeEngine[Any]], *, numbered: bool = False) -> TableValuedAlias:
    """
    Return rows made of one array parameter a column, so that any number of rows is one statement text.

    Args:
        name: The rows' name in the statement; the parameters are called ``<name>_<column>``.
        columns: The columns' names and types, in order.
        numbered: Whether a column ``n`` counts the rows from 1.
    """
    arrays = [bind(f"{name}_{key}", type_=ARRAY(kind)) for key, kind in columns.items()]
    typed: list[Any] = [column(key, kind) for key, kind in columns.items()]
    if numbered:
        return func.unnest(*arrays).table_valued(*typed, with_ordinality="n", name=name).render_derived()
    return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()


def among(target: ColumnElement[Any], ids: Select[Any]) -> ColumnElement[bool]:
    """
    Match *target* against the rows of *ids* as one array.

    A join would do the same, but on a young table the planner reads all of it for a hash join.
    """
    return target == func.any(func.array(ids.scalar_subquery()))
