"""
What the catalog says about our table.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Select, column, func, select, table
from sqlalchemy.sql.expression import TableClause

from sqlalchemy_brooq.model import Job

_RELATION: Final[TableClause] = table(
    "pg_class", column("oid"), column("relname"), column("relnamespace"), schema="pg_catalog"
)
_NAMESPACE: Final[TableClause] = table("pg_namespace", column("oid"), column("nspname"), schema="pg_catalog")


def version_mark(schema: str | None) -> Select[Any]:
    """
    Answer with one row, the comment of the relation called ``job``; with none where there is no such relation.

    Without a *schema* it is the one that ``job`` means on this connection. The name is a parameter, not
    part of a ``to_regclass`` text, so that no schema's name needs quoting.
    """
    here = func.pg_table_is_visible(_RELATION.c.oid) if schema is None else _NAMESPACE.c.nspname == schema
    return (
        select(func.obj_description(_RELATION.c.oid, "pg_class"))
        .select_from(_RELATION)
        .join(_NAMESPACE, _NAMESPACE.c.oid == _RELATION.c.relnamespace)
        .where(_RELATION.c.relname == Job.__tablename__, here)
    )
