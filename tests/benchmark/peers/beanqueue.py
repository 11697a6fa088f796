"""
beanqueue: rows through SQLAlchemy's ORM, a savepoint for each job, a batch in a transaction.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import bq
from bq.config import Config
from bq.db.base import Base
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool

from tests.benchmark.contestants import Gate
from tests.benchmark.contestants.peers import BEANQUEUE_BATCH
from tests.benchmark.marks import Marks
from tests.benchmark.orders import TOPIC, Bulk, Single, Work
from tests.benchmark.peers import Half, Mark, batches


@dataclass
class _Handling:
    """
    What the handler does. It is found by its module's name, so it can't be a closure.
    """

    mark: Mark = lambda _number: None
    seconds: float = 0.0


UNUSED = "postgresql://localhost/unused"
"""Its configuration takes no URL that names a socket, so the engine is made here, and otherwise as it does."""
HANDLING = _Handling()
APP = bq.BeanQueue(Config(PROCESSOR_PACKAGES=[__name__], DATABASE_URL=UNUSED))


@APP.processor(channel=TOPIC)
def handle(n: int) -> None:
    HANDLING.mark(n)
    if HANDLING.seconds:
        time.sleep(HANDLING.seconds)


class BeanQueue:
    """
    beanqueue with psycopg2, the driver that its documentation names.
    """

    def prepare(self, url: str) -> None:
        engine = create_engine(_url(url))
        Base.metadata.create_all(engine)
        engine.dispose()

    def work(self, order: Work, mark: Mark, gate: Gate) -> None:
        HANDLING.mark, HANDLING.seconds = mark, order.seconds
        settings, pool = _settings(order)
        APP.config = Config(
            PROCESSOR_PACKAGES=[__name__], DATABASE_URL=UNUSED, METRICS_HTTP_SERVER_ENABLED=False, **settings
        )
        APP.create_default_engine = lambda: create_engine(_url(order.url), **pool)
        gate.wait()
        APP.process_tasks((TOPIC,))

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        with Session(create_engine(_url(order.url))) as session:
            session.connection()
            session.commit()
            gate.wait()
            began = time.perf_counter()
            for number in range(order.count):
                if order.pause:
                    time.sleep(max(0.0, began + number * order.pause - time.perf_counter()))
                session.add(handle.run(n=number))
                session.commit()
                if marks is not None:
                    marks.stamp(number)
            return {"seconds": time.perf_counter() - began}

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        with Session(create_engine(_url(order.url))) as session:
            session.connection()
            session.commit()
            gate.wait()
            began = time.perf_counter()
            for numbers in batches(order.count):
                session.add_all([handle.run(n=number) for number in numbers])
                session.commit()
            return {"seconds": time.perf_counter() - began}


def _settings(order: Work) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Return what its configuration is given, and its engine.
    """
    if order.slots is not None and order.seconds:
        return {"MAX_WORKER_THREADS": order.slots}, {"pool_size": order.slots + 5}
    batch = {} if order.slots is None else {"BATCH_SIZE": BEANQUEUE_BATCH}
    return batch, {"poolclass": SingletonThreadPool}


def _url(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql+psycopg2://", 1)


def make(_variant: str) -> Half:
    """
    Return it.
    """
    return BeanQueue()
