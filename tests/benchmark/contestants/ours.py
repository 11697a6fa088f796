"""
Ours: ``ours:async`` with ``async def`` handlers, ``ours:threads`` with plain ones on eight threads and prefetch.

All settings but the number of slots, and of jobs that wait for one, are the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Final, Literal, cast

from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.model import metadata
from tests.benchmark.contestants import Contestant, Gate, InOurTable, Kind
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work

THREADS: Final = 8
BATCH: Final = 10_000
"""Jobs in a transaction of a bulk enqueue."""


class Ours(InOurTable):
    """
    This library.
    """

    def __init__(self, kind: Literal["async", "threads"]) -> None:
        self.name = f"ours, {kind}"
        self.kind: Kind = kind

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("sqlalchemy-brooq", "SQLAlchemy", "psycopg")}

    def prepare(self, url: str) -> None:
        engine = create_engine(url)
        metadata.create_all(engine)
        engine.dispose()

    def work(self, order: Work, marks: Marks, gate: Gate) -> None:
        engine = create_engine(order.url)
        queue = brooq.Queue(engine, self._config(order.slots), registry=CollectorRegistry())
        mark = marks.stamp if order.timed else marks.mark

        async def handle(claim: brooq.Claim) -> None:
            mark(claim.payload["n"])

        def handle_on_thread(claim: brooq.Claim) -> None:
            mark(claim.payload["n"])

        queue.register(TOPIC, handle if self.kind == "async" else handle_on_thread)
        gate.wait()
        with queue:
            gate.ended.wait()
        engine.dispose()

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        engine = create_engine(order.url)
        engine.connect().close()
        queue = brooq.Queue(engine, registry=CollectorRegistry())
        gate.wait()
        began = time.perf_counter()
        for number in range(order.count):
            if order.pause:
                time.sleep(max(0.0, began + number * order.pause - time.perf_counter()))
            if order.door == "enqueue":
                queue.enqueue(brooq.Job(TOPIC, {"n": number}))
            else:
                with Session(engine) as session:
                    session.add(brooq.Job(TOPIC, {"n": number}))
                    session.commit()
            if marks is not None:
                marks.stamp(number)
        seconds = time.perf_counter() - began
        engine.dispose()
        return {"seconds": seconds}

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        engine = create_engine(order.url)
        engine.connect().close()  # as the yardstick, which is connected before it starts
        gate.wait()
        seconds = building = 0.0
        for numbers in batches(order.count):
            began = time.perf_counter()
            jobs = [
                brooq.Job(TOPIC, {"n": number}, idempotency_key=f"key-{number}" if order.keyed else None)
                for number in numbers
            ]
            built = time.perf_counter()
            with Session(engine) as session:
                brooq.enqueue_many(session, jobs)
                session.commit()
            building += built - began
            seconds += time.perf_counter() - built
        engine.dispose()
        return {"seconds": seconds, "building": building}

    def _config(self, slots: int | None) -> brooq.Config:
        if slots is None:
            return brooq.Config()
        if self.kind == "async":
            return brooq.Config(workers=slots)
        return brooq.Config(workers=min(slots, THREADS), prefetch=max(slots - THREADS, 0))


def batches(count: int) -> Iterator[range]:
    """
    Yield the numbers below *count*, so many at a time as go into a transaction.
    """
    for begin in range(0, count, BATCH):
        yield range(begin, min(begin + BATCH, count))


def make(variant: str) -> Contestant:
    """
    Return the contestant with ``async`` or ``threads``.
    """
    if variant not in {"async", "threads"}:
        raise ValueError(f"ours:{variant} is no contestant: there are ours:async and ours:threads")
    return Ours(cast(Literal["async", "threads"], variant))
