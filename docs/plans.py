"""
Prints the plan behind each index of ``job``, on a table with a history: what ``architecture.md`` shows.

Run it from a checkout, ``python docs/plans.py``, with the extra ``demo`` installed. The plans are generic ones, the
worst that the plan cache can choose; each statement is executed, and rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, Executable, create_engine, text
from sqlalchemy.dialects.postgresql import psycopg as dialects

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from sqlalchemy_brooq.statements import exchange, producing, retention, upkeep
from sqlalchemy_brooq.vocabulary import TERMINAL
from sqlalchemy_brooq.worker.store import request_columns
from sqlalchemy_brooq.worker.turns import Turns

WORKER: Final = "host:1:00000000"
LEASE: Final = timedelta(minutes=2)
TOPICS: Final = ("email.send", "invoice.write", "report.day")

#: What is put into the table: nine of ten rows are history, and one in ten has a key.
HISTORY: Final = """
    INSERT INTO job (topic, priority, payload, state, attempts, available_at, claimed_at, locked_by, locked_until,
                     idempotency_key, created_at, updated_at)
    SELECT (ARRAY['email.send', 'invoice.write', 'report.day'])[1 + n % 3], n % 5 - 2, jsonb_build_object('n', n),
           state, (state <> 'pending')::int, at, CASE WHEN state <> 'pending' THEN at END,
           CASE WHEN state NOT IN ('pending', 'failed') THEN 'host:1:00000000' END,
           CASE WHEN state NOT IN ('pending', 'failed') THEN at + interval '2 min' END,
           CASE WHEN n % 10 = 0 THEN 'key-' || n END, at, at
    FROM (SELECT n, CASE WHEN n % 100 < 88 THEN 'done' WHEN n % 100 < 89 THEN 'dead' WHEN n % 100 < 90 THEN 'canceled'
                         WHEN n % 100 < 98 THEN 'pending' WHEN n % 1000 < 999 THEN 'failed' ELSE 'processing' END state,
                 now() + (n - :rows * 0.95) * interval '1 s' AS at
          FROM generate_series(1, :rows) n) AS made
"""

#: Lines that tell of memory and of how often an index was entered: not how the plan works.
NOISE: Final = (
    "Storage:",
    "Sort Method:",
    "Buckets:",
    "Batches:",
    "Full-sort Groups:",
    "Heap Blocks:",
    "Index Searches:",
)


class Plan(NamedTuple):
    """
    An index, what needs it, and how PostgreSQL goes about that.
    """

    index: str
    purpose: str
    text: str


def fill(connection: Connection, rows: int) -> None:
    """
    Give the table a history, and the planner its statistics.
    """
    connection.execute(text(HISTORY), {"rows": rows})
    connection.execute(text("ANALYZE job"))


def plans(connection: Connection) -> Iterator[Plan]:
    """
    Yield one plan for each index.
    """
    held = connection.execute(text("SELECT id, claimed_at FROM job WHERE state = 'processing' ORDER BY id LIMIT 20"))
    ids, moments = zip(*held, strict=True)
    keys = connection.execute(
        text("SELECT topic, idempotency_key FROM job WHERE idempotency_key IS NOT NULL ORDER BY id LIMIT 2")
    ).all()
    for index, purpose, statement, parameters in (
        ("job_pkey", "settle a batch of outcomes", exchange.settle(), outcomes(ids, moments)),
        ("job_ready_topic", "claim", exchange.claim(), claiming(8)),
        ("job_ready", "leave out levels where nothing is ready", exchange.live_levels(), levels()),
        ("job_idempotency", "find the jobs whose keys were taken", producing.find_jobs(), taken(keys)),
        (
            "job_leased",
            "return what has an expired lease to circulation",
            upkeep.reap(),
            {"batch": 1000, "guard_topic": [], "guard_limit": []},
        ),
        (
            "job_terminal",
            "delete what ended long ago",
            retention.purge(TERMINAL),
            {"ttl": timedelta(days=1), "batch": 1000, **retention.FIRST},
        ),
    ):
        yield Plan(index, purpose, explained(connection, statement, parameters))


def outcomes(ids: tuple[Any, ...], moments: tuple[datetime, ...]) -> dict[str, Any]:
    return {
        "worker": WORKER,
        "outcome_id": list(ids),
        "outcome_claimed_at": list(moments),
        # Nothing more is said of a job that is done.
        **{f"outcome_{name}": () for name in ("state", "delay", "refund", "error", "result")},
    }


def claiming(want: int) -> dict[str, Any]:
    return {"worker": WORKER, "lease": LEASE, "want": want, **request_columns(Turns(TOPICS).request(want))}


def levels() -> dict[str, Any]:
    return {name: value for name, value in claiming(1).items() if name.startswith("level_")} | {
        "level_sure": [False] * 5
    }


def taken(keys: list[Any]) -> dict[str, Any]:
    topics, names = zip(*keys, strict=True)
    return {"id": [uuid4() for _ in keys], "topic": list(topics), "idempotency_key": list(names)}


def explained(connection: Connection, statement: Executable, parameters: dict[str, Any]) -> str:
    """
    Return the generic plan of *statement*, executed and rolled back.
    """
    dialect = dialects.dialect(paramstyle="numeric_dollar")
    compiled = statement.compile(dialect=dialect)
    names, bound = compiled.positiontup, compiled.construct_params(parameters)
    types = [compiled.binds[name].type.compile(dialect) for name in names]
    values = [sent(compiled.binds[name].type, bound[name], dialect) for name in names]
    with connection.begin_nested() as savepoint:
        cursor = psycopg.ClientCursor(connection.connection.driver_connection)
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE explained {_listed(types)} AS {compiled}")
        explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF)"
        cursor.execute(f"{explain} EXECUTE explained {_listed(['%s' for _ in names])}", values)
        plan = "\n".join(line for (line,) in cursor.fetchall() if not line.lstrip().startswith(NOISE))
        savepoint.rollback()
    connection.exec_driver_sql("DEALLOCATE explained")
    return plan


def sent(kind: Any, value: Any, dialect: Any) -> Any:
    """
    Return *value* as the type hands it to the driver.
    """
    process = kind.dialect_impl(dialect).bind_processor(dialect)
    return process(value) if process is not None else value


def _listed(words: list[str]) -> str:
    return f"({', '.join(words)})" if words else ""


def main() -> None:
    with LocalPostgres(durable=False) as server:
        migrate(server.url())
        engine = create_engine(server.url())
        with engine.begin() as connection:
            version = connection.scalar(text("SHOW server_version"))
            fill(connection, 300_000)
            print(f"PostgreSQL {version}; 300,000 jobs, of which 270,000 are over")
            for plan in plans(connection):
                print(f"\n{plan.index}: {plan.purpose}\n\n{plan.text}")
        engine.dispose()


if __name__ == "__main__":
    main()
