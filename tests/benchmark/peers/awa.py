"""
awa, whose core is in Rust: its bulk enqueue, by COPY. It takes part in that alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

from awa import AsyncClient

from tests.benchmark.contestants import Gate
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.peers import Half, Mark, batches, conninfo

COPIED = 5_000
"""Jobs in one call."""


@dataclass
class Noop:
    n: int


class Awa:
    """
    awa, as far as it takes part.
    """

    def prepare(self, url: str) -> None:
        async def prepared() -> None:
            client = AsyncClient(_address(url))
            await client.migrate()
            await client.install_queue_storage(reset=True)
            await client.close()

        asyncio.run(prepared())

    def work(self, order: Work, mark: Mark, gate: Gate) -> None:
        raise NotImplementedError("awa takes part in the bulk enqueue alone")

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        raise NotImplementedError("awa takes part in the bulk enqueue alone")

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        async def enqueued() -> dict[str, float]:
            client = AsyncClient(_address(order.url))
            gate.wait()
            began = time.perf_counter()
            jobs = [Noop(number) for number in range(order.count)]
            built = time.perf_counter()
            for numbers in batches(order.count, COPIED):
                await client.enqueue_many_copy(jobs[numbers.start : numbers.stop], queue=TOPIC)
            seconds = time.perf_counter() - built
            await client.close()
            return {"seconds": seconds, "building": built - began}

        return asyncio.run(enqueued())


def _address(url: str) -> str:
    """
    Return the URL as its driver reads it: a socket's folder stands where the host does.
    """
    parts = urlsplit(conninfo(url))
    query = dict(parse_qsl(parts.query))
    if "host" not in query:
        return conninfo(url)
    host = f"{parts.netloc.rpartition('@')[0]}@{quote(query['host'], safe='')}"
    return f"postgresql://{host}:{query.get('port', 5432)}{parts.path}"


def make(_variant: str) -> Half:
    """
    Return it.
    """
    return Awa()
