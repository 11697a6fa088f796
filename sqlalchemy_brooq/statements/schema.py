"""
What the catalog says about our table.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Text, bindparam, case, cast, column, func, select, table, text
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.sql.expression import TableClause, TextualSelect

from sqlalchemy_brooq.model import Job

_RELATION: Final[TableClause] = table(
    "pg_class", column("oid"), column("relname"), column("relnamespace"), schema="pg_catalog"
)
_NAMESPACE: Final[TableClause] = table("pg_namespace", column("oid"), column("nspname"), schema="pg_catalog")

_BUILDS: Final[TableClause] = table(
    "pg_stat_progress_create_index",
    *map(column, ("relid", "phase", "blocks_done", "blocks_total", "tuples_done", "tuples_total")),
    schema="pg_catalog",
)

#: Each part by its kind and name, as PostgreSQL prints it. What it makes on its own accord is left out: the index of
#: the primary key, the triggers of foreign keys that lead here, and from version 18 on a constraint a NOT NULL column.
_PARTS: Final = text("""
    WITH job AS (
        SELECT pg_class.* FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relname = :name
        AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(pg_class.oid) ELSE nspname = :schema END
    )
    SELECT 'column' AS kind, attname::text AS name, format_type(atttypid, atttypmod)
        || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
        || coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), '') AS definition
    FROM pg_catalog.pg_attribute JOIN job ON attrelid = job.oid
    LEFT JOIN pg_catalog.pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 'index', pg_class.relname::text, CASE WHEN indisunique THEN 'UNIQUE ' ELSE '' END
        || substring(pg_get_indexdef(indexrelid) FROM 'USING .*')
        || CASE WHEN indisvalid THEN '' ELSE ' (not valid)' END
    FROM pg_catalog.pg_index JOIN job ON indrelid = job.oid JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid
    WHERE NOT indisprimary
    UNION ALL
    SELECT 'constraint', conname::text, pg_get_constraintdef(pg_constraint.oid)
    FROM pg_catalog.pg_constraint JOIN job ON conrelid = job.oid WHERE contype <> 'n'
    UNION ALL
    SELECT 'trigger', tgname::text, pg_get_triggerdef(pg_trigger.oid)
    FROM pg_catalog.pg_trigger JOIN job ON tgrelid = job.oid WHERE NOT tgisinternal
    UNION ALL
    SELECT 'setting', split_part(setting, '=', 1), split_part(setting, '=', 2)
    FROM job CROSS JOIN LATERAL unnest(reloptions) AS setting
    UNION ALL
    SELECT 'property', property, holds::text
    FROM job CROSS JOIN LATERAL unnest(
        ARRAY['logged', 'row security', 'partitioned'], ARRAY[relpersistence = 'p', relrowsecurity, relkind = 'p']
    ) AS properties (property, holds)
""")


def version_mark(schema: str | None) -> Select[Any]:
    """
    Answer with one row, the comment of the relation called ``job``; with none where there is no such relation.

    Without a *schema* it is the one that ``job`` means on this connection. The name is a parameter, not
    part of a ``to_regclass`` text, so that no schema's name needs quoting.
    """
    return _of_relation(select(func.obj_description(_RELATION.c.oid, "pg_class")).select_from(_RELATION), schema)


def parts(schema: str | None) -> TextualSelect:
    """
    Answer with a row for each part of the table: its kind, its name, and what PostgreSQL prints about it.

    Without a *schema* it is the table that ``job`` means on this connection.
    """
    return _PARTS.bindparams(bindparam("name", Job.__tablename__), bindparam("schema", schema, Text)).columns(
        column("kind", Text), column("name", Text), column("definition", Text)
    )


def index_build(schema: str | None) -> Select[Any]:
    """
    Answer with (phase, done, total) where an index of the table is being built; with no row where none is.
    """
    done = case((_BUILDS.c.blocks_total > 0, _BUILDS.c.blocks_done), else_=_BUILDS.c.tuples_done)
    total = case((_BUILDS.c.blocks_total > 0, _BUILDS.c.blocks_total), else_=_BUILDS.c.tuples_total)
    builds = _BUILDS.join(_RELATION, _RELATION.c.oid == _BUILDS.c.relid)
    return _of_relation(select(_BUILDS.c.phase, done.label("done"), total.label("total")).select_from(builds), schema)


def oid(schema: str | None) -> ColumnElement[Any]:
    """
    Return the table's OID, NULL where it isn't there. Without a *schema* it is what ``job`` means on this connection.
    """
    name = Job.__tablename__
    path = name if schema is None else func.concat(func.quote_ident(schema), f".{name}")
    return cast(func.to_regclass(path), OID)


def _of_relation(asked: Select[Any], schema: str | None) -> Select[Any]:
    """
    Ask it of relations called ``job`` alone: that of *schema*, or the one that the name means on this connection.
    """
    here = func.pg_table_is_visible(_RELATION.c.oid) if schema is None else _NAMESPACE.c.nspname == schema
    return asked.join(_NAMESPACE, _NAMESPACE.c.oid == _RELATION.c.relnamespace).where(
        _RELATION.c.relname == Job.__tablename__, here
    )
