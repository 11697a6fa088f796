"""
oban: jobs are claimed in batches, and settled one by one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import uvloop
from oban import Oban as App
from oban import worker
from oban.schema import install

from tests.benchmark.contestants import Gate
from tests.benchmark.contestants.peers import OBAN_CONNECTIONS, OBAN_LIMIT
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.peers import Half, Mark, batches, conninfo, one_by_one, until_over


@dataclass
class _Handling:
    """
    What the handler does. It is found by its module's name, so it can't be a closure.
    """

    mark: Mark = lambda _number: None
    seconds: float = 0.0


HANDLING = _Handling()


@worker(queue=TOPIC)
class Handle:
    new: ClassVar[Any]  # the decorator's

    async def process(self, job: Any) -> None:
        HANDLING.mark(job.args["n"])
        if HANDLING.seconds:
            await asyncio.sleep(HANDLING.seconds)


class Oban:
    """
    oban for Python.
    """

    def prepare(self, url: str) -> None:
        async def prepared() -> None:
            async with _pool(url) as pool:
                await install(pool)

        uvloop.run(prepared())

    def work(self, order: Work, mark: Mark, gate: Gate) -> None:
        HANDLING.mark, HANDLING.seconds = mark, order.seconds
        limit = 10 if order.slots is None else order.slots if order.seconds else OBAN_LIMIT

        async def worked() -> None:
            async with _pool(order.url, OBAN_CONNECTIONS) as pool:
                gate.wait()
                async with App(pool=pool, queues={TOPIC: limit}):
                    await until_over(gate)

        uvloop.run(worked())

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        async def enqueued() -> dict[str, float]:
            async with _pool(order.url) as pool, App(pool=pool) as app:
                return await one_by_one(lambda number: app.enqueue(_job(number)), order, marks, gate)

        return dict(uvloop.run(enqueued()))

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        async def enqueued() -> float:
            async with _pool(order.url) as pool, App(pool=pool) as app:
                gate.wait()
                began = time.perf_counter()
                for numbers in batches(order.count):
                    await app.enqueue_many([_job(number) for number in numbers])
                return time.perf_counter() - began

        return {"seconds": uvloop.run(enqueued())}


def _job(number: int) -> Any:
    return Handle.new({"n": number})


@asynccontextmanager
async def _pool(url: str, connections: int = 4) -> AsyncIterator[Any]:
    pool = await App.create_pool(conninfo(url), min_size=connections, max_size=connections)
    try:
        yield pool
    finally:
        await pool.close()


def make(_variant: str) -> Half:
    """
    Return it.
    """
    return Oban()
