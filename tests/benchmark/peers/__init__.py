"""
The peers' halves that run in their own environments: a module for each, which is imported nowhere else.

A module has ``prepare(url)``, ``work(order, mark, gate)``, ``single(order, marks, gate)`` and ``bulk(order, gate)``, as
`Contestant` has them. The standard library and the peer are all that may be imported: the environment has nothing else.
`tests.benchmark.contestants.peers` has the other halves, and each setting with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, Protocol, TypeVar

from tests.benchmark.contestants import Gate
from tests.benchmark.marks import Marks
from tests.benchmark.orders import Bulk, Single, Work

Mark = Callable[[int], None]
"""What a handler calls with its job's number."""
Run = Callable[[Coroutine[Any, Any, Any]], Any]
T = TypeVar("T")

BATCH: Final = 1_000
"""Jobs in one call of a bulk enqueue, where the peer doesn't cut them up itself."""


class Half(Protocol):
    """
    A module of this package.
    """

    def prepare(self, url: str) -> None: ...

    def work(self, order: Work, mark: Mark, gate: Gate) -> None: ...

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]: ...

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]: ...


def conninfo(url: str) -> str:
    """
    Return the URL as drivers read it, rather than SQLAlchemy.
    """
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def batches(count: int, size: int = BATCH) -> Iterator[range]:
    """
    Yield the numbers below *count*, *size* at a time.
    """
    for begin in range(0, count, size):
        yield range(begin, min(begin + size, count))


async def until_over(gate: Gate) -> None:
    """
    Wait until the measurement is over.
    """
    await asyncio.get_running_loop().run_in_executor(None, gate.ended.wait)


async def one_by_one(
    enqueue: Callable[[int], Awaitable[Any]], order: Single, marks: Marks | None, gate: Gate
) -> dict[str, float]:
    """
    Enqueue the jobs of *order* at their pace, and return what it took.
    """
    gate.wait()
    began = time.perf_counter()
    for number in range(order.count):
        if order.pause and (pause := began + number * order.pause - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        await enqueue(number)
        if marks is not None:
            marks.stamp(number)
    return {"seconds": time.perf_counter() - began}
