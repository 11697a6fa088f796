"""
chancy: jobs are claimed in batches, and what came of them is written once a second.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from chancy import Chancy as App
from chancy import Queue, Worker, job

from tests.benchmark.contestants import Gate
from tests.benchmark.contestants.peers import CHANCY_CONCURRENCY
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.peers import Half, Mark, conninfo, one_by_one


@dataclass
class _Handling:
    """
    What the handler does. It is found by its module's name, so it can't be a closure.
    """

    mark: Mark = lambda _number: None
    seconds: float = 0.0


HANDLING = _Handling()


@job(queue=TOPIC)
async def handle(*, n: int) -> None:
    HANDLING.mark(n)
    if HANDLING.seconds:
        await asyncio.sleep(HANDLING.seconds)


class Chancy:
    """
    chancy with its async executor.
    """

    def prepare(self, url: str) -> None:
        async def prepared() -> None:
            async with App(conninfo(url)) as app:
                await app.migrate()
                await app.declare(Queue(TOPIC, executor=App.Executor.Async, concurrency=100))

        asyncio.run(prepared())

    def work(self, order: Work, mark: Mark, gate: Gate) -> None:
        HANDLING.mark, HANDLING.seconds = mark, order.seconds

        async def worked() -> None:
            async with App(conninfo(order.url)) as app:
                if order.slots is not None:
                    await app.declare(_best(order), upsert=True)
                gate.wait()
                async with Worker(app, register_signal_handlers=False) as worker:
                    await worker.wait_for_shutdown()

        asyncio.run(worked())

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        async def enqueued() -> dict[str, float]:
            async with App(conninfo(order.url)) as app:
                await app.pool.open()
                return await one_by_one(lambda number: app.push(_job(number)), order, marks, gate)

        return asyncio.run(enqueued())

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        async def enqueued() -> float:
            async with App(conninfo(order.url)) as app:
                await app.pool.open()
                gate.wait()
                began = time.perf_counter()
                async for _ in app.push_many([_job(number) for number in range(order.count)]):
                    pass
                return time.perf_counter() - began

        return {"seconds": asyncio.run(enqueued())}


def _best(order: Work) -> Any:
    concurrency = order.slots if order.seconds else CHANCY_CONCURRENCY
    return Queue(TOPIC, executor=App.Executor.Async, concurrency=concurrency, eager_polling=True)


def _job(number: int) -> Any:
    return handle.job.with_kwargs(n=number)


def make(_variant: str) -> Half:
    """
    Return it.
    """
    return Chancy()
