"""
Who gets which job, and in which order: the claim's promises, with real workers.
"""

from __future__ import annotations

import threading
from collections import Counter
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, text

import sqlalchemy_brooq as brooq
from tests.databases import HERE
from tests.programs import program
from tests.queues import MakeQueue, add, all_settled, states
from tests.waiting import eventually, row


def test_three_workers_of_eight_slots_run_each_of_3000_jobs_once_and_never_two_at_a_moment(
    engine: Engine, make_queue: MakeQueue
) -> None:
    add(engine, *(brooq.Job("t", n) for n in range(3000)))
    guard = threading.Lock()
    running: set[UUID] = set()
    runs: Counter[UUID] = Counter()
    overlaps: list[UUID] = []

    def handle(claim: brooq.Claim) -> None:
        with guard:
            runs[claim.id] += 1
            if claim.id in running:
                overlaps.append(claim.id)
            running.add(claim.id)
        with guard:
            running.discard(claim.id)

    for _ in range(3):
        queue = make_queue(engine, workers=8)
        queue.register("t", handle)
        queue.start()

    eventually(lambda: len(runs) == 3000 and all_settled(engine)(), timeout=60)
    assert states(engine) == {"done": 3000}
    assert set(runs.values()) == {1}
    assert overlaps == []
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job WHERE attempts <> 1 OR requeues <> 0")) == 0


WORKER = """
    import sys
    import sqlalchemy as sa
    import sqlalchemy_brooq as brooq

    engine = sa.create_engine(sys.argv[1], isolation_level=sys.argv[2])
    runs = sa.create_engine(sys.argv[1], isolation_level="AUTOCOMMIT")
    queue = brooq.Queue(engine, brooq.Config(workers=8, poll_interval="50ms"))

    @queue.handler("t")
    def handle(claim):
        with runs.connect() as connection:
            connection.execute(sa.text("INSERT INTO runs VALUES (:id)"), {"id": claim.id})

    @queue.handler(sys.argv[3])
    def greet(claim):
        pass

    report = queue.run()
    sys.exit(0 if report.clean else 1)
"""


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
def test_two_worker_processes_run_each_job_once_whatever_the_engine_isolates(
    engine: Engine, database_url: URL, level: str
) -> None:
    add(engine, brooq.Job("one"), brooq.Job("other"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE runs (job_id uuid)"))
    with program(WORKER, database_url, level, "one") as one, program(WORKER, database_url, level, "other") as other:
        eventually(all_settled(engine), timeout=60)  # both are up
        add(engine, *(brooq.Job("t", n) for n in range(500)))
        eventually(all_settled(engine), timeout=60)
        for worker in (one, other):
            worker.terminate()
        codes = [worker.wait(20) for worker in (one, other)]

    assert codes == [0, 0]
    assert states(engine) == {"done": 502}
    with engine.connect() as connection:
        counts = connection.execute(text("SELECT count(*), count(DISTINCT job_id) FROM runs")).one()
        assert tuple(counts) == (500, 500)
        assert connection.scalar(text("SELECT max(attempts) FROM job")) == 1


@pytest.mark.parametrize("prefetch", [0, 20])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_jobs_of_one_transaction_run_in_the_order_in_which_they_were_built(
    engine: Engine, make_queue: MakeQueue, kind: str, prefetch: int
) -> None:
    jobs = [brooq.Job("fifo", n) for n in range(50)]
    add(engine, *reversed(jobs))
    seen: list[int] = []
    queue = make_queue(engine, workers=1, prefetch=prefetch)
    register(queue, "fifo", kind, lambda claim: seen.append(claim.payload))

    queue.start()

    eventually(all_settled(engine), timeout=20)
    assert seen == list(range(50))


def register(queue: brooq.Queue, topic: str, kind: str, body: object) -> None:
    assert callable(body)
    if kind == "plain":
        queue.register(topic, body)
    else:

        async def handle(claim: brooq.Claim) -> object:
            return body(claim)

        queue.register(topic, handle)


def test_a_higher_priority_goes_first(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, *(brooq.Job("t", n % 5 - 2, priority=n % 5 - 2) for n in range(25)))
    seen: list[int] = []
    queue = make_queue(engine, workers=1)
    queue.register("t", lambda claim: seen.append(claim.priority))

    queue.start()

    eventually(all_settled(engine), timeout=20)
    assert seen == sorted(seen, reverse=True)


def test_a_topic_that_no_handler_serves_stays_untouched(engine: Engine, make_queue: MakeQueue) -> None:
    strangers = add(engine, *(brooq.Job("b") for _ in range(20)))
    (mine,) = add(engine, brooq.Job("a"))
    before = [row(engine, job_id) for job_id in strangers]
    first = make_queue(engine)
    first.register("a", lambda claim: None)

    first.start()
    eventually(lambda: row(engine, mine)["state"] == "done")
    polls = threading.Event()
    polls.wait(0.3)  # several polls and reaper rounds: nothing to wait for, since nothing may happen

    assert [row(engine, job_id) for job_id in strangers] == before
    second = make_queue(engine)
    second.register("b", lambda claim: None)
    second.start()
    eventually(all_settled(engine))
    assert {row(engine, job_id)["attempts"] for job_id in strangers} == {1}


def test_every_topic_of_a_backlog_is_served_though_one_is_huge(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, *(brooq.Job("huge", n) for n in range(2000)))
    add(engine, *(brooq.Job(f"small.{n}") for n in range(10)))
    order: list[str] = []
    queue = make_queue(engine, workers=2)
    for topic in ["huge", *(f"small.{n}" for n in range(10))]:
        queue.register(topic, lambda claim: order.append(claim.topic))

    queue.start()

    eventually(lambda: len(set(order)) == 11)
    assert len(order) < 200


def test_a_scheduled_job_runs_when_its_time_has_come_by_the_database_clock(
    engine: Engine, make_queue: MakeQueue
) -> None:
    (job_id,) = add(engine, brooq.Job("t", delay="300ms"))
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert found["claimed_at"] >= found["available_at"] >= found["created_at"]


def test_a_job_inserted_with_plain_sql_runs(engine: Engine, make_queue: MakeQueue) -> None:
    seen: list[object] = []
    queue = make_queue(engine)
    queue.register("email.send", lambda claim: seen.append(claim.payload))
    queue.start()

    with engine.begin() as connection:
        connection.execute(text("""INSERT INTO job (topic, payload) VALUES ('email.send', '{"to": "ada"}')"""))

    eventually(all_settled(engine))
    assert seen == [{"to": "ada"}]


def test_an_expired_lease_of_a_dead_worker_is_requeued_and_run(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE job SET state = 'processing', attempts = 1, locked_by = 'gone:1:x', claimed_at = now(),"
                " locked_until = now() - interval '1 s'"
            )
        )
    queue = make_queue(engine)
    queue.register("t", lambda claim: None)

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"], found["last_error"]) == ("done", 2, 1, None)


def test_no_connection_of_a_worker_is_in_a_transaction_while_a_handler_runs(
    database_url: URL, engine: Engine, make_queue: MakeQueue
) -> None:
    add(engine, *(brooq.Job("t") for _ in range(4)))
    inside, leave = threading.Barrier(5), threading.Event()

    def handle(claim: brooq.Claim) -> None:
        inside.wait(10)
        leave.wait(10)

    worker_engine = create_engine(database_url, connect_args={"application_name": "worker"})
    queue = make_queue(worker_engine, workers=4)
    queue.register("t", handle)
    queue.start()
    inside.wait(10)
    try:
        with engine.connect() as connection:
            open_since = text(
                f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker' AND {HERE}"
                " AND state LIKE 'idle in transaction%' AND now() - state_change > interval '50 ms'"
            )
            connected = text(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker' AND {HERE}")
            assert connection.scalar(connected) >= 2
            assert connection.scalar(open_since) == 0
    finally:
        leave.set()
    eventually(all_settled(engine))
    queue.close()
    worker_engine.dispose()
