"""
procrastinate: a row for each job and rows for its events, claimed one by one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from procrastinate import App, PsycopgConnector

from tests.benchmark.contestants import Gate
from tests.benchmark.contestants.peers import PROCRASTINATE_CONCURRENCY
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.peers import Half, Mark, batches, conninfo, one_by_one


class Procrastinate:
    """
    procrastinate with psycopg's pool.
    """

    def prepare(self, url: str) -> None:
        async def prepared() -> None:
            app, _ = _app(url)
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

        asyncio.run(prepared())

    def work(self, order: Work, mark: Mark, gate: Gate) -> None:
        async def worked() -> None:
            concurrency = PROCRASTINATE_CONCURRENCY
            if order.slots is None:
                concurrency = 1  # its default
            elif order.seconds:
                concurrency = order.slots
            app, _ = _app(order.url, concurrency + 4, mark, order.seconds)
            async with app.open_async():
                gate.wait()
                await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)

        asyncio.run(worked())

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        async def enqueued() -> dict[str, float]:
            app, job = _app(order.url)
            async with app.open_async():
                return await one_by_one(lambda number: job.defer_async(n=number), order, marks, gate)

        return asyncio.run(enqueued())

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        async def enqueued() -> float:
            app, job = _app(order.url)
            async with app.open_async():
                gate.wait()
                began = time.perf_counter()
                for numbers in batches(order.count):
                    await job.batch_defer_async(*[{"n": number} for number in numbers])
                return time.perf_counter() - began

        return {"seconds": asyncio.run(enqueued())}


def _app(url: str, connections: int = 4, mark: Mark = lambda _number: None, seconds: float = 0.0) -> tuple[Any, Any]:
    app = App(connector=PsycopgConnector(conninfo=conninfo(url), min_size=1, max_size=connections))

    @app.task(name=TOPIC)
    async def handle(n: int) -> None:
        mark(n)
        if seconds:
            await asyncio.sleep(seconds)

    return app, handle


def make(_variant: str) -> Half:
    """
    Return it.
    """
    return Procrastinate()
