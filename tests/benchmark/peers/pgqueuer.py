"""
pgqueuer, on asyncpg or psycopg: batches of jobs are claimed and settled, rows are moved to a log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import uvloop
from pgqueuer import QueueManager
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from tests.benchmark.contestants import Gate
from tests.benchmark.contestants.peers import PGQUEUER_BATCHES
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.peers import Half, Mark, batches, conninfo, one_by_one


class PgQueuer:
    """
    pgqueuer on one of its drivers.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver

    def prepare(self, url: str) -> None:
        async def prepared() -> None:
            async with self._queries(url) as queries:
                await queries.install()

        asyncio.run(prepared())

    def work(self, order: Work, mark: Mark, gate: Gate) -> None:
        async def worked() -> None:
            async with self._queries(order.url) as queries:
                manager = QueueManager(queries)

                @manager.entrypoint(TOPIC)
                async def handle(job: Job) -> None:
                    mark(int(job.payload))
                    if order.seconds:
                        await asyncio.sleep(order.seconds)

                gate.wait()
                await manager.run(**self._settings(order))

        uvloop.run(worked())

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        async def enqueued() -> dict[str, float]:
            async with self._queries(order.url) as queries:
                return await one_by_one(lambda number: queries.enqueue(TOPIC, b"%d" % number, 0), order, marks, gate)

        return dict(uvloop.run(enqueued()))

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        async def enqueued() -> float:
            async with self._queries(order.url) as queries:
                gate.wait()
                began = time.perf_counter()
                for numbers in batches(order.count):
                    payloads = [b"%d" % number for number in numbers]
                    await queries.enqueue([TOPIC] * len(numbers), payloads, [0] * len(numbers))
                return time.perf_counter() - began

        return {"seconds": uvloop.run(enqueued())}

    def _settings(self, order: Work) -> dict[str, Any]:
        if order.slots is None:
            return {}
        if order.seconds:
            return {"batch_size": order.slots // 2, "max_concurrent_tasks": order.slots}
        return {"batch_size": PGQUEUER_BATCHES[self._driver], "dequeue_timeout": timedelta(seconds=30)}

    @asynccontextmanager
    async def _queries(self, url: str) -> AsyncIterator[Any]:
        if self._driver == "asyncpg":
            import asyncpg
            from pgqueuer.db import AsyncpgDriver

            connection = await asyncpg.connect(conninfo(url))
            try:
                yield Queries(AsyncpgDriver(connection))
            finally:
                await connection.close()
        else:
            import psycopg
            from pgqueuer.db import PsycopgDriver

            async with await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True) as connection:
                yield Queries(PsycopgDriver(connection))


def make(driver: str) -> Half:
    """
    Return it on *driver*.
    """
    return PgQueuer(driver)
