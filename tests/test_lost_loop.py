"""
A consumer's event loop that is closed under a started queue.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from prometheus_client import CollectorRegistry

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.config import Config, HandlerOptions
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.vocabulary import Event
from sqlalchemy_brooq.worker.aioloop import HandlerLoop
from sqlalchemy_brooq.worker.attempt import Attempt, Handler, outcome_of
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.executor import Executor
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.results import Results
from sqlalchemy_brooq.worker.running import Runner

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def handle(_: brooq.Claim) -> None:
    raise AssertionError("no handler can run in a closed loop")


def test_however_many_jobs_wait_for_a_loop_that_is_gone_each_is_given_back() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    desk = Desk("w", Journal(Metrics(CollectorRegistry())))
    runner = Runner(desk, cast(Any, None), Results(None))
    executor = Executor(desk, runner, HandlerLoop(loop), slots=1, prefetch=3000)
    handler = Handler("t", handle, HandlerOptions().resolve(Config()), is_async=True)
    claims = [Claim(new_id(), "t", None, 1, 0, 0, NOW, NOW, NOW, "w", NOW) for _ in range(3000)]
    attempts = [Attempt(claim, handler, 0.0) for claim in claims]

    executor.submit(attempts)

    assert len(desk.outbox) == 3000
    assert {outcome_of(attempt).event for attempt in attempts} == {Event.REQUEUED}
    assert executor.running() == []
    assert executor.free() == 0
