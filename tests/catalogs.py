"""
What is in a database, as its catalog tells: everything, or all that distinguishes one table ``job`` from another.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Engine, text

from sqlalchemy_brooq import metadata

#: Everything in a database that a migration might have made, but for what is PostgreSQL's own.
_CONTENTS: Final = text("""
    WITH own AS (SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema')
    SELECT 'relation', relname::text FROM pg_class WHERE relnamespace IN (SELECT oid FROM own)
    UNION ALL SELECT 'type', typname FROM pg_type WHERE typnamespace IN (SELECT oid FROM own)
    UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace IN (SELECT oid FROM own)
    UNION ALL SELECT 'constraint', conname FROM pg_constraint WHERE connamespace IN (SELECT oid FROM own)
    UNION ALL SELECT 'trigger', tgname FROM pg_trigger
    UNION ALL SELECT 'event trigger', evtname FROM pg_event_trigger
    UNION ALL SELECT 'extension', extname FROM pg_extension
    UNION ALL SELECT 'schema', nspname FROM own
    UNION ALL SELECT 'comment', description FROM pg_description WHERE objoid IN (
        SELECT oid FROM pg_class WHERE relnamespace IN (SELECT oid FROM own))
    ORDER BY 1, 2""")

#: Everything that tells one table from another, as PostgreSQL itself prints it.
_CATALOG: Final = {
    "columns": """
        SELECT attnum, attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attcollation, attidentity,
               pg_get_expr(adbin, adrelid), col_description(attrelid, attnum)
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = 'job'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum""",
    "indexes": "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'job'::regclass ORDER BY 1",
    "constraints": """
        SELECT conname, contype, convalidated, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid = 'job'::regclass ORDER BY 1""",
    "table": """
        SELECT array(SELECT unnest(reloptions) ORDER BY 1), relkind, relpersistence, obj_description(oid, 'pg_class')
        FROM pg_class WHERE oid = 'job'::regclass""",
    "triggers": "SELECT tgname FROM pg_trigger WHERE tgrelid = 'job'::regclass ORDER BY 1",
}


def contents(engine: Engine) -> list[tuple[str, str]]:
    """
    Return the kind and the name of everything in the database.
    """
    with engine.connect() as connection:
        return [(kind, name) for kind, name in connection.execute(_CONTENTS)]


def catalog(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """
    Return what PostgreSQL prints about the table ``job`` that the connection's ``search_path`` finds.
    """
    return {part: [tuple(row) for row in connection.execute(text(query))] for part, query in _CATALOG.items()}


def models_catalog(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """
    Return the same about the model's table, which is made for that and dropped again.
    """
    metadata.create_all(engine)
    with engine.connect() as connection:
        found = catalog(connection)
    metadata.drop_all(engine)
    return found


def run_sql(engine: Engine, sql: str) -> None:
    """
    Execute statements, each in a transaction of its own.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(sql)
