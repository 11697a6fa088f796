"""
What two pumps and a claim that goes on where the last one ended must not cost.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Connection, Engine, create_engine, event, text

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.worker import demand as demands
from sqlalchemy_brooq.worker.demand import FROM_LEFT, Demand
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.port import Exchanged, Fate, Reaped
from sqlalchemy_brooq.worker.pump import Crew, Pump
from sqlalchemy_brooq.worker.turns import Request, Turns
from tests.queues import MakeQueue, all_settled, states
from tests.waiting import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FILL = "INSERT INTO job (topic, payload) SELECT 't', to_jsonb(n) FROM generate_series(1, :jobs) AS n"


def fill(engine: Engine, jobs: int) -> None:
    with engine.begin() as connection:
        connection.execute(text(FILL), {"jobs": jobs})


# -- two pumps


def test_two_pumps_run_each_job_once_and_never_more_at_a_time_than_there_are_slots(
    engine: Engine, make_queue: MakeQueue
) -> None:
    fill(engine, 6000)
    runs: Counter[UUID] = Counter()
    running: list[int] = [0, 0]
    queue = make_queue(engine, workers=300)

    async def handle(claim: brooq.Claim) -> None:
        runs[claim.id] += 1
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.001)
        running[0] -= 1

    queue.register("t", handle)
    queue.start()
    health = queue.health()
    assert health is not None
    assert {"pump", "pump-2"} <= {loop.name for loop in health.loops}

    eventually(all_settled(engine), timeout=60)
    assert states(engine) == {"done": 6000}
    assert set(runs.values()) == {1}
    assert len(runs) == 6000
    assert running[1] <= 300


def test_few_slots_have_one_pump(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, workers=99)
    queue.register("t", print)
    queue.start()

    health = queue.health()
    assert health is not None
    assert [loop.name for loop in health.loops if loop.name.startswith("pump")] == ["pump"]


def test_a_plain_handler_s_thread_runs_on_with_the_next_job(engine: Engine, make_queue: MakeQueue) -> None:
    fill(engine, 400)
    threads: set[str] = set()
    contexts: list[object] = []
    queue = make_queue(engine, workers=2, prefetch=200)

    def handle(_: brooq.Claim) -> None:
        threads.add(threading.current_thread().name)
        contexts.append(mark.get(None))
        mark.set(object())

    mark: contextvars.ContextVar[object] = contextvars.ContextVar("mark")
    queue.register("t", handle)
    queue.start()

    eventually(all_settled(engine))
    assert len(threads) <= 3
    assert set(contexts) == {None}  # each job begins with a fresh one


# -- the search for claims whose answers were lost


class Wire:
    """
    A pump's port without a database: each claim gets what it asks for.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.searched = 0

    def exchange(self, _: object, request: Request | None) -> Exchanged:
        self.asked += request is not None
        return Exchanged((), [], {})

    def fates(self, _: object) -> list[Fate]:
        return []

    def release(self, _: object) -> list[Reaped]:
        self.searched += 1
        return []

    def recover(self) -> None:
        pass


def in_doubt() -> tuple[Crew, Wire, Pump, Request]:
    """
    Return a pump that has a claim to search for, and what the other pump has asked for and has no answer to.
    """
    demand = Demand(Turns(["t"]), 1000, lambda: 1000, 1.0)
    desk = Desk("w", Journal(Metrics(CollectorRegistry())))
    crew = Crew({}, demand, desk, lambda _: None, 30.0)
    wire = Wire()
    pump = Pump(0, wire, crew)
    of_the_other = take(demand, time.monotonic())
    crew.doubts.raise_at(time.monotonic())
    return crew, wire, pump, of_the_other


def test_no_claim_begins_while_a_search_waits_for_the_other_pump_s_and_afterwards_claims_go_on() -> None:
    crew, wire, pump, of_the_other = in_doubt()
    demand = crew.demand

    demand.hint()
    assert pump.round() > 0  # it does not spin
    assert (wire.asked, wire.searched) == (0, 0)

    demand.done(of_the_other, [], time.monotonic(), time.monotonic())
    demand.look_now()
    pump.round()
    assert (wire.asked, wire.searched) == (1, 1)


def test_a_search_that_is_given_up_before_its_turn_comes_stops_no_claim() -> None:
    crew, wire, pump, of_the_other = in_doubt()
    demand = crew.demand
    pump.round()
    crew.doubts.dismiss()  # as after a while

    demand.done(of_the_other, [], time.monotonic(), time.monotonic())
    demand.look_now()
    pump.round()
    assert (wire.asked, wire.searched) == (1, 0)


# -- plans


@pytest.mark.parametrize("isolation_level", ["READ COMMITTED", "REPEATABLE READ"])
def test_the_pump_lets_the_server_plan_once_as_soon_as_its_session_is_known_to_be_its_own(
    database_url: URL, make_queue: MakeQueue, isolation_level: str
) -> None:
    options = f"-c default_transaction_isolation={isolation_level.lower().replace(' ', chr(92) + ' ')}"
    engine = create_engine(database_url, connect_args={"options": options})
    modes: list[object] = []

    def look(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "branch_topic" in statement:
            driver: Any = connection.connection.driver_connection
            modes.append(driver.execute("SHOW plan_cache_mode").fetchone()[0])

    event.listen(engine, "after_cursor_execute", look)
    queue = make_queue(engine)
    queue.register("t", print)
    queue.start()

    eventually(lambda: "force_generic_plan" in modes)
    queue.close()
    engine.dispose()


# -- where a claim begins


@contextmanager
def claims_counted(engine: Engine) -> Iterator[list[bool]]:
    """
    Keep, for each claim that is sent, whether it began at the left.
    """
    begins: list[bool] = []

    def look(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "branch_after_at" in statement and isinstance(parameters, dict):
            begins.append(parameters["branch_after_at"] == "{}")

    event.listen(engine, "before_cursor_execute", look)
    try:
        yield begins
    finally:
        event.remove(engine, "before_cursor_execute", look)


def test_what_is_committed_behind_the_mark_waits_a_second_at_most(
    engine: Engine, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demands, "SLOW", (0.0, 0.0))
    fill(engine, 60_000)
    late = threading.Event()
    queue = make_queue(engine, workers=8, poll_interval="30s")

    def handle(claim: brooq.Claim) -> None:
        time.sleep(0.002)
        if claim.payload == "late":
            late.set()

    queue.register("t", handle)
    with claims_counted(engine) as begins:
        queue.start()
        eventually(lambda: begins.count(False) > 20)
        with engine.begin() as connection:
            # Nobody is told of it, and it lies before all that have been claimed.
            connection.execute(
                text("INSERT INTO job (topic, payload, available_at) VALUES ('t', '\"late\"', now() - interval '1 h')")
            )
        before = time.monotonic()
        assert late.wait(10)
        took = time.monotonic() - before
        queue.stop()

    assert states(engine)["pending"] > 1000  # the backlog was not what was waited for
    assert took < FROM_LEFT + 2
    assert begins.count(True) * 5 < len(begins)


def test_a_wake_up_lets_the_next_claim_begin_at_the_left() -> None:
    demand = Demand(Turns(["t"]), 4, lambda: 4, 1.0)
    began = time.monotonic()
    answer_in_full(demand, began)
    later = take(demand, began + 0.1)
    assert not later.from_left
    demand.done(later, [claim(n) for n in range(later.want)], began + 0.1, began + 0.1)

    demand.hint()
    assert take(demand, began + 0.3).from_left


def test_a_short_answer_lets_the_next_claim_begin_at_the_left() -> None:
    demand = Demand(Turns(["t"]), 4, lambda: 4, 1.0)
    began = time.monotonic()
    answer_in_full(demand, began)
    request = take(demand, began + 0.1)
    assert not request.from_left
    demand.done(request, [claim(0)], began + 0.1, began + 0.1)

    assert take(demand, began + 2).from_left


def test_a_claim_begins_at_the_left_once_a_second() -> None:
    demand = Demand(Turns(["t"]), 4, lambda: 4, 1.0)
    began = time.monotonic()
    answer_in_full(demand, began)
    lefts = []
    for tenth in range(1, 31):
        request = take(demand, began + tenth / 10)
        demand.done(request, [claim(n) for n in range(request.want)], began + tenth / 10, began + tenth / 10 + 0.01)
        lefts.append(request.from_left)

    assert lefts.count(True) == 3


def test_slots_that_are_spoken_for_are_not_asked_for_again() -> None:
    demand = Demand(Turns(["t"]), 8, lambda: 8, 1.0)
    first = take(demand, 1.0)

    assert first.want == 8
    assert demand.take(3.0) is None
    demand.done(first, None, 1.0, 1.0)
    assert take(demand, 3.0).want == 8


def take(demand: Demand, now: float) -> Request:
    request = demand.take(now)
    assert request is not None
    return request


def answer_in_full(demand: Demand, now: float, took: float = 0.01) -> None:
    request = take(demand, now)
    demand.done(request, [claim(n) for n in range(request.want)], now, now + took)


def test_where_the_left_is_quick_each_claim_begins_there() -> None:
    demand = Demand(Turns(["t"]), 4, lambda: 4, 1.0)
    began = time.monotonic()
    answer_in_full(demand, began, took=0.001)

    assert take(demand, began + 0.1).from_left


def claim(number: int) -> Claim:
    return Claim(UUID(int=number), "t", None, 1, 0, 0, NOW, NOW, NOW, "w", NOW)


def test_nothing_is_asked_for_after_the_end_and_a_claim_under_way_is_waited_for() -> None:
    demand = Demand(Turns(["t"]), 4, lambda: 4, 1.0)
    request = take(demand, 1.0)
    stopped = threading.Event()

    def stop() -> None:
        demand.stop()
        stopped.set()

    thread = threading.Thread(target=stop)
    thread.start()
    eventually(lambda: demand.stopped)
    assert not stopped.wait(0.05)
    demand.done(request, [], 1.0, 1.0)
    assert stopped.wait(5)
    thread.join()
    assert demand.take(9.0) is None


@pytest.mark.parametrize("held_first", [True, False])
def test_a_search_and_a_claim_exclude_each_other(held_first: bool) -> None:
    demand = Demand(Turns(["t"]), 4, lambda: 4, 1.0)
    if held_first:
        assert demand.hold()
        assert demand.take(1.0) is None
        demand.go_on()
        assert demand.take(1.0) is not None
    else:
        request = take(demand, 1.0)
        assert not demand.hold()
        demand.done(request, None, 1.0, 1.0)
        demand.look_now()
        # One that could not begin keeps nobody waiting: the search may be given up before its turn comes.
        assert demand.take(9.0) is not None
