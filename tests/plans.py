"""
How PostgreSQL goes about a statement of ours: its plan, and how many pages it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Executable
from sqlalchemy.dialects.postgresql import psycopg as dialects

#: Ways in which the plan cache may plan: for these values, or for any.
PLANS: Final = ("force_custom_plan", "force_generic_plan")


@dataclass(frozen=True, slots=True)
class Plan:
    """
    An executed plan.
    """

    nodes: tuple[dict[str, Any], ...]
    buffers: int
    """Shared pages that it read, from memory or from disk."""
    rows: int

    @property
    def scans(self) -> set[str]:
        """
        The scans of the job table: the index's name, or ``Seq Scan``.
        """
        return _scans(self.nodes)


def job_scans(plan: dict[str, Any]) -> set[str]:
    """
    Return the scans of the job table in a plan as PostgreSQL tells it: the index's name, or ``Seq Scan``.
    """
    return _scans(_nodes(plan))


def explained(connection: Connection, statement: Executable, parameters: dict[str, Any], mode: str) -> Plan:
    """
    Return the plan of *statement* by plan cache *mode*, executed once and rolled back.
    """
    dialect = dialects.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    names = compiled.positiontup
    bound = compiled.construct_params(parameters)
    types = [compiled.binds[name].type.compile(dialect) for name in names]
    values = [_sent(compiled.binds[name].type, bound[name], dialect) for name in names]
    with connection.begin_nested() as savepoint:
        cursor = psycopg.ClientCursor(connection.connection.driver_connection)  # type: ignore[arg-type]
        cursor.execute(f"SET LOCAL plan_cache_mode = {mode}")
        cursor.execute(f"PREPARE explained ({', '.join(types)}) AS {compiled}")
        cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained ({', '.join(['%s'] * len(values))})", values
        )
        row = cursor.fetchone()
        assert row is not None
        savepoint.rollback()
    connection.exec_driver_sql("DEALLOCATE ALL")
    root = row[0][0]["Plan"]
    return Plan(tuple(_nodes(root)), root["Shared Hit Blocks"] + root["Shared Read Blocks"], int(root["Actual Rows"]))


def _scans(nodes: Iterable[dict[str, Any]]) -> set[str]:
    return {
        node.get("Index Name", node["Node Type"])
        for node in nodes
        if node.get("Relation Name") == "job" or ("Index Name" in node and node["Index Name"].startswith("job_"))
    } - {"Bitmap Heap Scan"}


def _sent(kind: Any, value: Any, dialect: Any) -> Any:
    process = kind.dialect_impl(dialect).bind_processor(dialect)
    return process(value) if process is not None else value


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
