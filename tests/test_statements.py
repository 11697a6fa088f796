"""
The statements themselves, one by one, against PostgreSQL: limits, locks, the fence, and the order of claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, select, text
from sqlalchemy.orm import Session

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.model import JOB, Job
from sqlalchemy_brooq.statements import exchange
from sqlalchemy_brooq.vocabulary import Event, JobState, Outcome
from sqlalchemy_brooq.worker.connection import PrivateConnection
from sqlalchemy_brooq.worker.port import Settlement
from sqlalchemy_brooq.worker.store import HeartbeatStore, PumpStore, ReaperStore
from sqlalchemy_brooq.worker.turns import Turns
from tests.queues import add, on

LEASE = timedelta(seconds=30)
DONE = Outcome(Event.DONE)

#: Settings under which the planner runs an ``IN (SELECT … LIMIT)`` again for each row.
HOSTILE = "hashjoin mergejoin hashagg material sort bitmapscan"


@pytest.fixture
def store(engine: Engine) -> Iterator[PumpStore]:
    with private(engine) as connection:
        yield PumpStore(connection, "w1", LEASE, 10.0)


class private:  # noqa: N801 - reads as a function
    def __init__(self, engine: Engine) -> None:
        self.connection = PrivateConnection(engine)

    def __enter__(self) -> PrivateConnection:
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def claim(store: PumpStore, want: int = 1, topics: str = "t") -> list[Claim]:
    return list(store.exchange((), Turns(topics.split()).request(want)).claims)


def state(engine: Engine, job_id: Any) -> str:
    with engine.connect() as connection:
        return str(connection.scalar(select(JOB.c.state).where(JOB.c.id == job_id)))


def age_lease(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET locked_until = now() - interval '1 s' WHERE state = 'processing'"))


def test_a_claim_takes_no_more_than_it_asked_for_whatever_the_plan(database_url: URL) -> None:
    options = " ".join(f"-c enable_{name}=off" for name in HOSTILE.split())
    hostile = create_engine(database_url, connect_args={"options": options})
    add(hostile, *(Job("t", {"n": n}) for n in range(10)))

    with private(hostile) as connection:
        store = PumpStore(connection, "w1", LEASE, 10.0)
        assert len(claim(store, 1)) == 1
        assert len(claim(store, 3)) == 3

    with hostile.connect() as connection:
        assert connection.scalar(text("SELECT sum(attempts) FROM job")) == 4
    hostile.dispose()


def test_a_claim_is_ordered_by_priority_then_time_then_construction(engine: Engine, store: PumpStore) -> None:
    jobs = [Job("t", n, priority=n % 3 - 1) for n in range(12)]
    add(engine, *reversed(jobs))

    claims = claim(store, 12)

    assert [one.id for one in claims] == [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.id))]


def test_a_claim_fills_its_slots_from_one_topic_when_the_others_have_nothing(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("t7", n) for n in range(20)))

    assert len(claim(store, 15, "t1 t2 t3 t4 t5 t6 t7")) == 15


def test_a_high_priority_fills_the_slots_before_a_lower_one(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("a", n, priority=1) for n in range(10)), *(Job("b", n) for n in range(10)))

    assert {one.topic for one in claim(store, 10, "a b")} == {"a"}


def test_neither_scheduled_nor_foreign_jobs_are_claimed(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t", delay="1h"), Job("other"))

    assert claim(store, 10) == []


def test_a_job_that_a_foreign_key_references_in_an_open_transaction_is_claimed(
    engine: Engine, store: PumpStore
) -> None:
    (job_id,) = add(engine, Job("t"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE outbox (id int PRIMARY KEY, job_id uuid REFERENCES job (id))"))

    with engine.begin() as consumer:
        consumer.execute(text("INSERT INTO outbox VALUES (1, :id)"), {"id": job_id})
        (one,) = claim(store)
        assert store.exchange([Settlement(one, DONE)], None).unwritten == []

    assert state(engine, job_id) == "done"


def test_one_statement_settles_and_claims(engine: Engine, store: PumpStore) -> None:
    first, second = add(engine, Job("t"), Job("t"))
    (one,) = claim(store)

    answer = store.exchange([Settlement(one, DONE)], Turns("t").request(5))

    assert [claimed.id for claimed in answer.claims] == [second]
    assert (state(engine, first), state(engine, second)) == ("done", "processing")


def test_what_was_not_written_is_told_also_when_nothing_is_claimed(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t"), Job("t"))
    one, other = claim(store, 2)
    store.exchange([Settlement(one, DONE)], None)

    answer = store.exchange([Settlement(one, DONE), Settlement(other, DONE)], Turns("t").request(5))

    assert (answer.unwritten, answer.claims) == ([0], [])


@pytest.mark.parametrize("event", [Event.DONE, Event.FAILED, Event.DEAD, Event.CANCELED, Event.REQUEUED])
def test_a_stale_claim_of_the_same_worker_writes_nothing(engine: Engine, store: PumpStore, event: Event) -> None:
    (job_id,) = add(engine, Job("t"))
    (stale,) = claim(store)
    age_lease(engine)
    ReaperStore(on(engine)).reap({}, 10)
    (current,) = claim(store)

    answer = store.exchange([Settlement(stale, Outcome(event, error="late"))], None)

    assert stale.id == current.id == job_id
    assert answer.unwritten == [0]
    assert state(engine, job_id) == "processing"
    with private(engine) as connection:
        beat = HeartbeatStore(connection, "w1", LEASE, 10.0)
        assert list(beat.renew([stale])) == [None]
        assert list(beat.held([stale, current])) == [False, True]


def test_a_refunded_attempt_repeats_its_number_but_not_its_fence(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t"))
    (first,) = claim(store)
    store.exchange([Settlement(first, Outcome(Event.FAILED, refund=True, error="x"))], None)
    (second,) = claim(store)

    assert (first.attempt, second.attempt) == (1, 1)
    assert store.exchange([Settlement(first, DONE)], None).unwritten == [0]


@pytest.mark.parametrize("ended", ["done", "dead", "canceled"])
def test_no_settle_overwrites_a_terminal_state(engine: Engine, store: PumpStore, ended: str) -> None:
    (job_id,) = add(engine, Job("t"))
    (one,) = claim(store)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET state = :state"), {"state": ended})

    for event in (Event.DONE, Event.FAILED, Event.DEAD, Event.CANCELED, Event.REQUEUED):
        assert store.exchange([Settlement(one, Outcome(event))], None).unwritten == [0]
    assert state(engine, job_id) == ended


def test_a_row_that_somebody_holds_is_skipped_and_the_others_are_written(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("t") for _ in range(3)))
    claims = sorted(claim(store, 3), key=lambda one: one.id)

    with engine.begin() as consumer:
        consumer.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": claims[1].id})
        answer = store.exchange([Settlement(one, DONE) for one in claims], None)
        fates = store.fates([claims[1]])

    assert answer.unwritten == [1]
    assert fates[0].held
    assert store.exchange([Settlement(claims[1], DONE)], None).unwritten == []
    assert store.fates([claims[1]])[0] == (False, JobState.DONE)


def test_a_heartbeat_skips_a_row_that_somebody_holds_and_renews_the_others(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("t") for _ in range(3)))
    claims = sorted(claim(store, 3), key=lambda one: one.id)

    with private(engine) as connection, engine.begin() as consumer:
        consumer.execute(text("UPDATE job SET state = 'canceled' WHERE id = :id"), {"id": claims[0].id})
        beat = HeartbeatStore(connection, "w1", LEASE, 10.0)
        renewed = beat.renew(claims)
        held = beat.held([claims[0]])

    assert [until is not None for until in renewed] == [False, True, True]
    assert list(held) == [True]  # not canceled as long as the consumer has not committed


def test_a_renewal_never_writes_a_lease_that_has_run_out(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t"))
    claims = claim(store)
    age_lease(engine)

    with private(engine) as connection:
        beat = HeartbeatStore(connection, "w1", LEASE, 10.0)
        assert list(beat.renew(claims)) == [None]
        assert list(beat.held(claims)) == [False]


def test_a_failure_gives_up_the_lease_and_a_terminal_row_keeps_it_as_a_trace(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t", 1), Job("t", 2))
    failed, done = claim(store, 2)
    outcomes = [Settlement(failed, Outcome(Event.FAILED, delay=timedelta(hours=1), error="E: x"))]

    store.exchange([*outcomes, Settlement(done, Outcome(Event.DONE, result='{"ok": true}'))], None)

    with Session(engine) as session:
        first, second = session.get_one(Job, failed.id), session.get_one(Job, done.id)
        assert (first.state, first.locked_by, first.locked_until, first.last_error) == ("failed", None, None, "E: x")
        assert first.claimed_at == failed.claimed_at
        assert (first.available_at - first.updated_at) == timedelta(hours=1)
        assert (second.state, second.locked_by, second.result) == ("done", "w1", {"ok": True})


def test_a_later_success_keeps_the_earlier_failure(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    (first,) = claim(store)
    store.exchange([Settlement(first, Outcome(Event.FAILED, error="E: x"))], None)
    (second,) = claim(store)
    store.exchange([Settlement(second, DONE)], None)

    with Session(engine) as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.attempts, job.last_error) == ("done", 2, "E: x")


def test_the_reaper_counts_a_requeue_and_leaves_the_attempts(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    claim(store)
    assert ReaperStore(on(engine)).reap({}, 10) == []
    age_lease(engine)

    (reaped,) = ReaperStore(on(engine)).reap({"t": 5}, 10)

    assert (reaped.id, reaped.topic, reaped.state) == (job_id, "t", JobState.PENDING)
    with Session(engine) as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.attempts, job.requeues, job.locked_by, job.locked_until) == ("pending", 1, 1, None, None)
        assert job.last_error is None


def test_the_poison_guard_kills_at_the_expiry_that_would_exceed_it(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    for _ in range(3):
        claim(store)
        age_lease(engine)
        ReaperStore(on(engine)).reap({"t": 2, "other": 0}, 10)

    with Session(engine) as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.requeues, job.attempts) == ("dead", 2, 3)
        assert job.last_error == "lease expired 3 times"


@pytest.mark.parametrize(
    ("guard", "ended"), [({}, ("pending", None)), ({"t": 5}, ("dead", "lease expired 2147483648 times"))]
)
def test_a_number_of_requeues_that_is_full_stops_no_reaper(
    engine: Engine, store: PumpStore, guard: dict[str, int], ended: tuple[str, str | None]
) -> None:
    full, other = add(engine, Job("t"), Job("other"))
    claim(store, 2, "t other")
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET requeues = 2147483647 WHERE id = :id"), {"id": full})
    age_lease(engine)

    ReaperStore(on(engine)).reap(guard, 10)

    with Session(engine) as session:
        job = session.get_one(Job, full)
        assert (job.state, job.last_error, job.requeues) == (*ended, 2147483647)
    assert state(engine, other) == "pending"


def test_a_worker_that_does_not_serve_a_topic_only_requeues_its_jobs(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    for _ in range(3):
        claim(store)
        age_lease(engine)
        ReaperStore(on(engine)).reap({"other": 1}, 10)

    assert state(engine, job_id) == "pending"


def test_the_reaper_takes_one_batch_at_a_time(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("t") for _ in range(5)))
    claim(store, 5)
    age_lease(engine)

    assert [len(ReaperStore(on(engine)).reap({}, 3)) for _ in range(3)] == [3, 2, 0]


def test_a_payload_that_python_can_not_decode_spoils_only_its_own_claim(engine: Engine, store: PumpStore) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (topic, payload) VALUES ('t', CAST(repeat('9', 5000) AS jsonb))"))
    add(engine, Job("t", "fine"))

    answer = store.exchange((), Turns(["t"]).request(5))

    assert (len(answer.claims), len(answer.broken)) == (2, 1)


def test_the_statements_never_bind_a_state_that_an_index_needs() -> None:
    statements: list[Any] = [exchange.claim(), exchange.settle(), exchange.exchange()]
    for statement in statements:
        compiled = statement.compile(dialect=create_engine("postgresql+psycopg://").dialect)
        assert not {"pending", "failed", "processing"} & {str(value) for value in compiled.params.values()}
