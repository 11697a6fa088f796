"""
The yardstick: ``bare``, psycopg alone on the same table; ``bare:100`` claims a hundred rows at a time.

It claims k rows in one statement, settles them in another, and each commits by itself: what is left when everything is
taken away that makes a queue of it. One topic, one order and one index for that; no lease is renewed, nothing is tried
again, nobody can cancel.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.model import JOB, metadata
from tests.benchmark.contestants import Contestant, Gate, InOurTable, Kind, Rates
from tests.benchmark.contestants.ours import batches
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.servers import conninfo

BATCH: Final = 100
LARGEST: Final = 500
"""Beyond that more rows a statement gain nothing."""
POLL: Final = 1.0
TICK: Final = 0.1

CLAIM: Final = """
    WITH picked AS MATERIALIZED (
        SELECT id FROM job WHERE state IN ('pending', 'failed') AND available_at <= now()
        ORDER BY available_at, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE job SET state = 'processing', attempts = attempts + 1, locked_by = 'bare', claimed_at = now(),
                   locked_until = now() + interval '2 min', updated_at = now()
    FROM picked WHERE job.id = picked.id RETURNING job.id, job.payload, job.claimed_at"""
SETTLE: Final = """
    UPDATE job SET state = 'done', updated_at = now()
    FROM unnest(%(ids)s::uuid[], %(moments)s::timestamptz[]) AS ended (id, claimed_at)
    WHERE job.id = ended.id AND state = 'processing' AND locked_by = 'bare' AND job.claimed_at = ended.claimed_at"""
INSERT: Final = "INSERT INTO job (id, topic, payload) VALUES (%s, %s, %s::jsonb)"
INSERT_AND_NOTIFY: Final = f"WITH new AS ({INSERT} RETURNING 1) SELECT pg_notify('bench', '') FROM new"
INSERT_KEYED: Final = """
    INSERT INTO job (id, topic, payload, idempotency_key)
    SELECT id, 'bench', payload, key FROM unnest(%s::uuid[], %s::jsonb[], %s::text[]) AS new (id, payload, key)
    ON CONFLICT (topic, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"""


class Bare(InOurTable):
    """
    psycopg, and nothing else.

    Args:
        batch: How many rows it claims at a time, whatever it is told.
    """

    kind: Kind = "loop"
    tables = "bare"
    rates = Rates(240_000, 4_700, 40_000)

    def __init__(self, batch: int | None) -> None:
        self.name = "bare SQL" if batch is None else f"bare SQL, {batch} rows"
        self._batch = batch

    def versions(self) -> Mapping[str, str]:
        return {"psycopg": f"{version('psycopg')} ({psycopg.pq.__impl__})"}

    def prepare(self, url: str) -> None:
        from sqlalchemy import create_engine

        engine = create_engine(url)
        metadata.create_all(engine)
        with engine.begin() as connection:
            for index in JOB.indexes:
                if str(index.name).startswith("job_ready"):
                    index.drop(connection)
            connection.exec_driver_sql(
                "CREATE INDEX job_ready ON job (available_at, id) WHERE state IN ('pending', 'failed')"
            )
        engine.dispose()

    def work(self, order: Work, marks: Marks, gate: Gate) -> None:
        mark = marks.stamp if order.timed else marks.mark
        limit = self._batch or min(order.slots or BATCH, LARGEST)
        with connected(order.url) as connection:
            connection.execute("LISTEN bench")
            cursor = connection.cursor(binary=True)
            gate.wait()
            while not gate.ended.is_set():
                if not _round(cursor, limit, mark):
                    _await_wakeup(connection, gate)

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        statement = INSERT_AND_NOTIFY if order.pause else INSERT
        with connected(order.url) as connection:
            gate.wait()
            began = time.perf_counter()
            for number in range(order.count):
                if order.pause:
                    time.sleep(max(0.0, began + number * order.pause - time.perf_counter()))
                connection.execute(statement, [new_id(), TOPIC, json.dumps({"n": number})])
                if marks is not None:
                    marks.stamp(number)
            return {"seconds": time.perf_counter() - began}

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        with connected(order.url) as connection:
            gate.wait()
            began = time.perf_counter()
            for numbers in batches(order.count):
                (_insert_keyed if order.keyed else _copy)(connection, numbers)
            return {"seconds": time.perf_counter() - began}


def connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """
    Return a connection that commits each statement by itself, and has it prepared by the server.
    """
    return psycopg.connect(conninfo(url), autocommit=True, prepare_threshold=1)


def _round(cursor: psycopg.Cursor[tuple[Any, ...]], limit: int, mark: Callable[[int], None]) -> bool:
    """
    Claim, run and settle; return whether there was anything.
    """
    rows = cursor.execute(CLAIM, {"limit": limit}).fetchall()
    for _, payload, _ in rows:
        mark(payload["n"])
    if rows:
        cursor.execute(SETTLE, {"ids": [row[0] for row in rows], "moments": [row[2] for row in rows]})
    return bool(rows)


def _await_wakeup(connection: psycopg.Connection[tuple[Any, ...]], gate: Gate) -> None:
    """
    Wait for a notification, for a second at most.
    """
    for _ in range(round(POLL / TICK)):
        if gate.ended.is_set() or [*connection.notifies(timeout=TICK, stop_after=1)]:
            return


def _copy(connection: psycopg.Connection[tuple[Any, ...]], numbers: range) -> None:
    with connection.cursor().copy("COPY job (id, topic, payload) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["uuid", "text", "jsonb"])
        for number in numbers:
            copy.write_row((new_id(), TOPIC, Jsonb({"n": number})))


def _insert_keyed(connection: psycopg.Connection[tuple[Any, ...]], numbers: range) -> None:
    ids = [new_id() for _ in numbers]
    payloads = [json.dumps({"n": number}) for number in numbers]
    connection.execute(INSERT_KEYED, [ids, payloads, [f"key-{number}" for number in numbers]])


def make(variant: str) -> Contestant:
    """
    Return the contestant, which claims as many rows at a time as the variant says, or the worker's slots.
    """
    return Bare(int(variant) if variant else None)
