"""
Ours: ``ours:async`` with ``async def`` handlers, ``ours:threads`` with plain ones on eight threads and prefetch; and
``ours:command``, which is the first one by ``brooq-worker run``.

All settings but the number of slots, and of jobs that wait for one, are the defaults; where jobs fail, so is not the
pause before the next attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Final, Literal, cast

from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.model import metadata
from tests.benchmark.contestants import Contestant, Gate, InOurTable, Kind, Rates
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work

Variant = Literal["async", "threads", "command"]

THREADS: Final = 8
BATCH: Final = 10_000
"""Jobs in a transaction of a bulk enqueue."""
BACKOFF: Final = "100ms"
ORDER_VARIABLE: Final = "BROOQ_BENCH_ORDER"
"""How ``brooq-worker run`` is told what the process is to do."""
COMMAND: Final = (sys.executable, "-c", "from sqlalchemy_brooq.cli import main; main(prog_name='brooq-worker')", "run")


class Ours(InOurTable):
    """
    This library.
    """

    rates = Rates(100_000, 2_800, 42_000)

    def __init__(self, kind: Variant) -> None:
        self.name = f"ours, {kind}"
        self.kind: Kind = kind

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("sqlalchemy-brooq", "SQLAlchemy", "psycopg")}

    def prepare(self, url: str) -> None:
        engine = create_engine(url)
        metadata.create_all(engine)
        engine.dispose()

    def work(self, order: Work, marks: Marks, gate: Gate) -> None:
        if self.kind == "command":
            _run_command(order, gate)
            return
        queue = make_queue(order, marks, plain=self.kind == "threads")
        gate.wait()
        with queue:
            gate.ended.wait()

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


def make_queue(order: Work, marks: Marks, *, plain: bool = False) -> brooq.Queue:
    """
    Return the queue that *order* asks for.

    Args:
        order: What is to be done.
        marks: Where the handlers note that they began.
        plain: Whether they are plain functions, rather than ``async def`` ones.
    """
    mark = marks.stamp if order.timed else marks.mark
    queue = brooq.Queue(create_engine(order.url), _config(order, plain=plain), registry=CollectorRegistry())
    options = brooq.HandlerOptions(backoff_base=BACKOFF) if order.failing else None
    last = step_topic(order.steps)
    queue.register(last, (_plain if plain else _async)(order, mark), options)
    for step in range(1, order.steps):
        queue.register(step_topic(step), _first(step_topic(step + 1)))
    return queue


def step_topic(step: int) -> str:
    """
    Return the topic of a chain's step, counted from 1.
    """
    return TOPIC if step == 1 else f"{TOPIC}.{step}"


def _config(order: Work, *, plain: bool) -> brooq.Config:
    if order.slots is None:
        return brooq.Config()
    if order.seconds or not plain:
        return brooq.Config(workers=order.slots)
    return brooq.Config(workers=min(order.slots, THREADS), prefetch=max(order.slots - THREADS, 0))


def _async(order: Work, mark: Callable[[int], None]) -> Callable[[brooq.Claim], Awaitable[None]]:
    """
    Return the handler; what it isn't asked to do doesn't cost it a look.
    """
    if not order.seconds and not order.failing:

        async def handle(claim: brooq.Claim) -> None:
            mark(claim.payload["n"])

        return handle

    async def wait_or_fail(claim: brooq.Claim) -> None:
        _fail_first(order, claim)
        mark(claim.payload["n"])
        if order.seconds:
            await asyncio.sleep(order.seconds)

    return wait_or_fail


def _plain(order: Work, mark: Callable[[int], None]) -> Callable[[brooq.Claim], None]:
    if not order.seconds and not order.failing:

        def handle(claim: brooq.Claim) -> None:
            mark(claim.payload["n"])

        return handle

    def wait_or_fail(claim: brooq.Claim) -> None:
        _fail_first(order, claim)
        mark(claim.payload["n"])
        if order.seconds:
            time.sleep(order.seconds)

    return wait_or_fail


def _fail_first(order: Work, claim: brooq.Claim) -> None:
    if order.failing and claim.attempt == 1 and claim.payload["n"] % order.failing == 0:
        raise RuntimeError("a first attempt that fails")


def _first(following: str) -> Callable[[brooq.Claim], Awaitable[None]]:
    async def chain(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job(following, claim.payload))

    return chain


def _run_command(order: Work, gate: Gate) -> None:
    arguments = ["tests.benchmark.program:queue", "--listen", "off", "--processes", str(order.processes)]
    gate.wait()
    environment = {**os.environ, ORDER_VARIABLE: json.dumps(asdict(order))}
    with subprocess.Popen([*COMMAND, *arguments, "--log-level", "warning"], env=environment) as process:
        gate.ended.wait()
        process.terminate()


def batches(count: int) -> Iterator[range]:
    """
    Yield the numbers below *count*, so many at a time as go into a transaction.
    """
    for begin in range(0, count, BATCH):
        yield range(begin, min(begin + BATCH, count))


def make(variant: str) -> Contestant:
    """
    Return the contestant with ``async``, ``threads`` or ``command``.
    """
    if variant not in {"async", "threads", "command"}:
        raise ValueError(f"ours:{variant} is no contestant: there are ours:async, ours:threads and ours:command")
    return Ours(cast(Variant, variant))
