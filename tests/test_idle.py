"""
What a worker that has nothing to do asks of the database.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from tests.queues import MakeQueue
from tests.waiting import eventually, row


@contextmanager
def statements(engine: Engine, containing: str = "") -> Iterator[list[float]]:
    """
    Keep the time of each statement on the connections of *engine*, the worker's own included.
    """
    times: list[float] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if containing in statement:
            times.append(time.monotonic())

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield times
    finally:
        event.remove(engine, "before_cursor_execute", note)


def settled_down(times: list[float]) -> None:
    """
    Wait until the start, and the looks that follow it, are over.
    """
    eventually(lambda: bool(times) and time.monotonic() - times[-1] > 0.5)


def test_an_idle_worker_asks_at_most_twice_a_second(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, poll_interval="1s", reaper_period="30s", lease="2m")
    queue.register("t", print)
    with statements(engine) as times:
        queue.start()
        settled_down(times)
        before = len(times)
        eventually(lambda: len(times) - before >= 3, timeout=20)

        assert times[-1] - times[before] >= (len(times) - before - 1) / 2


def test_a_wake_up_costs_a_worker_at_most_ten_statements(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, poll_interval="30s", reaper_period="30s", lease="2m")
    queue.register("t", lambda claim: None)
    other = create_engine(engine.url)
    with statements(engine) as times:
        queue.start()
        settled_down(times)
        before = len(times)
        with Session(other, expire_on_commit=False) as session, session.begin():
            job = brooq.Job("t")
            session.add(job)
        eventually(lambda: row(other, job.id)["state"] == "done")
        settled_down(times)

        # One of them settled the job.
        assert 2 <= len(times) - before <= 11
    other.dispose()


def test_idle_workers_drift_apart(engine: Engine, make_queue: MakeQueue) -> None:
    # Twenty that a deploy has started at one moment would otherwise look at one moment for ever.
    queue = make_queue(engine, poll_interval="200ms", wakeup="poll", reaper_period="30s", lease="2m")
    queue.register("t", print)
    with statements(engine, containing="branch_topic") as claims:
        queue.start()
        eventually(lambda: len(claims) > 13)

    gaps = [later - earlier for earlier, later in pairwise(claims[-12:])]
    assert min(gaps) > 0.19
    assert max(gaps) - min(gaps) > 0.02
