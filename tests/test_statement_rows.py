"""
What each of the engine's statements writes into a row, column by column, and what it leaves alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, text

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.statements import exchange, upkeep
from sqlalchemy_brooq.vocabulary import SUCCESS, Event, JobState, Outcome
from sqlalchemy_brooq.worker.connection import PrivateConnection
from sqlalchemy_brooq.worker.port import Fate, Settlement
from sqlalchemy_brooq.worker.store import GONE, HeartbeatStore, PumpStore, ReaperStore, claim_columns, request_columns
from sqlalchemy_brooq.worker.turns import Turns
from tests.queues import add, on
from tests.waiting import row

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


@pytest.fixture
def connection(engine: Engine) -> Iterator[PrivateConnection]:
    connection = PrivateConnection(engine)
    yield connection
    connection.close()


@pytest.fixture
def store(connection: PrivateConnection) -> PumpStore:
    return PumpStore(connection, "w1", LEASE, 10.0)


@pytest.fixture
def heart(connection: PrivateConnection) -> HeartbeatStore:
    return HeartbeatStore(connection, "w1", LEASE, 10.0)


def run(engine: Engine, sql: str, **parameters: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(sql), parameters)


def claim(store: PumpStore, want: int = 10, topics: str = "t") -> list[Claim]:
    return list(store.exchange((), Turns(topics.split()).request(want)).claims)


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_a_claim_charges_the_attempt_and_writes_the_lease(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t", {"n": 1}, priority=1))
    run(engine, "UPDATE job SET attempts = 2, requeues = 1, last_error = 'E', updated_at = now() - interval '1 h'")
    before = row(engine, job_id)

    (one,) = claim(store)

    after = row(engine, job_id)
    assert changed(before, after) == {"state", "attempts", "claimed_at", "locked_by", "locked_until", "updated_at"}
    assert (after["state"], after["attempts"], after["locked_by"]) == ("processing", 3, "w1")
    assert after["locked_until"] == after["updated_at"] + LEASE
    assert after["claimed_at"] > after["updated_at"]  # the moment itself, not the transaction's
    assert (one.id, one.topic, one.payload, one.attempt, one.requeues, one.priority) == (job_id, "t", {"n": 1}, 3, 1, 1)
    assert (one.created_at, one.available_at) == (after["created_at"], after["available_at"])
    assert (one.claimed_at, one.lease) == (after["claimed_at"], ("w1", after["locked_until"]))


def test_a_number_of_attempts_that_is_full_stays(engine: Engine, store: PumpStore) -> None:
    full, nearly = add(engine, Job("t"), Job("t"))
    run(engine, "UPDATE job SET attempts = CASE id WHEN :full THEN 2147483647 ELSE 2147483646 END", full=full)

    assert [one.attempt for one in claim(store)] == [2147483647, 2147483647]
    assert [one.id for one in claim(store)] == []
    assert row(engine, nearly)["state"] == "processing"


LEASE_COLUMNS = {"locked_by", "locked_until"}
OUTCOMES: list[tuple[Outcome, set[str]]] = [
    (SUCCESS, set()),
    (Outcome(Event.DONE), set()),
    (Outcome(Event.DONE, result="[1]"), {"result"}),
    (Outcome(Event.FAILED, delay=HOUR), {"available_at", *LEASE_COLUMNS}),
    (Outcome(Event.FAILED, delay=HOUR, error="E: 2"), {"available_at", "last_error", *LEASE_COLUMNS}),
    (Outcome(Event.FAILED, delay=HOUR, refund=True), {"available_at", "attempts", *LEASE_COLUMNS}),
    (Outcome(Event.DEAD, error="E: 2"), {"last_error"}),
    (Outcome(Event.CANCELED, error="E: 2"), {"last_error"}),
    (Outcome(Event.REQUEUED, refund=True), {"attempts", *LEASE_COLUMNS}),
]


@pytest.mark.parametrize("rest", [False, True], ids=["alone", "first of some"])
@pytest.mark.parametrize(("outcome", "columns"), OUTCOMES)
def test_an_outcome_writes_what_it_says_and_leaves_the_rest(
    engine: Engine, store: PumpStore, outcome: Outcome, columns: set[str], rest: bool
) -> None:
    add(engine, Job("t"), Job("t"), Job("t"))
    run(engine, "UPDATE job SET attempts = 4, last_error = 'E: 1', available_at = now() - interval '1 h'")
    one, *others = claim(store, 3 if rest else 1)
    before = row(engine, one.id)

    answer = store.exchange([Settlement(one, outcome), *(Settlement(other, SUCCESS) for other in others)], None)

    after = row(engine, one.id)
    assert answer.unwritten == []
    assert changed(before, after) == {"state", "updated_at", *columns}
    assert after["state"] == outcome.state
    assert after["attempts"] == (4 if outcome.refund else 5)
    assert after["last_error"] == (outcome.error or "E: 1")
    assert after["available_at"] == (after["updated_at"] + HOUR if outcome.delay else before["available_at"])
    assert [row(engine, other.id)["state"] for other in others] == ["done"] * len(others)


def test_a_charge_is_not_given_back_below_zero(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    (one,) = claim(store)
    run(engine, "UPDATE job SET attempts = 0")

    store.exchange([Settlement(one, Outcome(Event.REQUEUED, refund=True))], None)

    assert (row(engine, job_id)["state"], row(engine, job_id)["attempts"]) == ("pending", 0)


def test_a_result_stays_when_a_later_outcome_has_none(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    (one,) = claim(store)
    run(engine, "UPDATE job SET result = '[1]'")

    store.exchange([Settlement(one, Outcome(Event.DONE))], None)

    assert row(engine, job_id)["result"] == [1]


def test_another_worker_touches_no_claim(engine: Engine, store: PumpStore, connection: PrivateConnection) -> None:
    (job_id,) = add(engine, Job("t"))
    (one,) = claim(store)
    before = row(engine, job_id)
    other = PumpStore(connection, "w2", LEASE, 10.0)
    beat = HeartbeatStore(connection, "w2", LEASE, 10.0)

    assert other.exchange([Settlement(one, SUCCESS)], None).unwritten == [0]
    assert list(beat.renew([one])) == [None]
    assert list(beat.held([one])) == [False]
    assert other.fates([one]) == [Fate(held=False, state=JobState.PROCESSING)]
    assert other.release([]) == []
    assert row(engine, job_id) == before


def test_fates_tell_of_a_claim_and_not_of_later_ones(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t"), Job("t"), Job("t"))
    again, kept, done = claim(store)
    store.exchange([Settlement(again, Outcome(Event.REQUEUED, refund=True)), Settlement(done, SUCCESS)], None)
    (later,) = claim(store)

    fates = store.fates([again, kept, done, later])

    assert later.id == again.id
    assert fates == [GONE, Fate(True, JobState.PROCESSING), Fate(False, JobState.DONE), Fate(True, JobState.PROCESSING)]


def test_fates_tell_two_claims_of_one_moment_apart(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("t") for _ in range(9)))
    one, *others = claim(store)
    run(engine, "UPDATE job SET claimed_at = :moment", moment=one.claimed_at)
    run(engine, "UPDATE job SET state = 'done' WHERE id <> :id", id=one.id)

    assert len(others) == 8
    assert store.fates([one]) == [Fate(True, JobState.PROCESSING)]


def test_the_fence_tells_two_claims_of_one_moment_apart(
    engine: Engine, store: PumpStore, heart: HeartbeatStore
) -> None:
    add(engine, Job("t"), Job("t"))
    one, other = claim(store)
    run(engine, "UPDATE job SET claimed_at = :moment", moment=one.claimed_at)
    before = row(engine, other.id)

    assert len(heart.renew([one])) == 1
    assert store.exchange([Settlement(one, Outcome(Event.DEAD, error="E"))], None).unwritten == []

    assert row(engine, one.id)["state"] == "dead"
    assert row(engine, other.id) == before


def test_a_claim_passes_over_what_another_transaction_holds(engine: Engine, store: PumpStore) -> None:
    held, free = add(engine, Job("t"), Job("t"))

    with engine.begin() as consumer:
        consumer.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": held})
        assert [one.id for one in claim(store)] == [free]

    assert [one.id for one in claim(store)] == [held]


def test_a_claim_goes_on_from_where_the_last_one_ended(engine: Engine, store: PumpStore) -> None:
    first, second, third = add(engine, Job("t"), Job("t"), Job("t"))
    turns = Turns(["t"])

    def claimed(want: int, *, from_left: bool = False) -> list[Claim]:
        request = turns.request(want, from_left=from_left)
        claims = list(store.exchange((), request).claims)
        turns.learn(request, claims)
        return claims

    assert [one.id for one in claimed(1, from_left=True)] == [first]
    (one,) = claimed(1)
    store.exchange([Settlement(one, Outcome(Event.REQUEUED, refund=True))], None)
    run(engine, "UPDATE job SET state = 'pending', locked_by = NULL, locked_until = NULL WHERE id = :id", id=first)

    assert one.id == second
    assert [one.id for one in claimed(10)] == [second, third]  # of the mark itself, and behind it
    assert [one.id for one in claimed(10)] == []
    assert [one.id for one in claimed(10, from_left=True)] == [first]


def test_a_claim_that_comes_with_a_settle_has_its_order_too(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t"))
    (one,) = claim(store)
    jobs = [Job("t", priority=n % 3 - 1) for n in range(12)]
    add(engine, *reversed(jobs))

    answer = store.exchange([Settlement(one, SUCCESS)], Turns(["t"]).request(12))

    assert [one.id for one in answer.claims] == [
        job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.id))
    ]


@pytest.mark.parametrize("topics", ["t", "t t1 t2 t3 t4 t5"])
def test_a_job_that_is_due_now_is_claimed(engine: Engine, topics: str) -> None:
    parameters = {"worker": "w1", "lease": LEASE, "want": 5, **request_columns(Turns(topics.split()).request(5))}

    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (topic) VALUES ('t')"))
        assert len(connection.execute(exchange.claim(), parameters).all()) == 1


def test_a_lease_that_ends_now_is_not_over(engine: Engine, store: PumpStore) -> None:
    add(engine, Job("t"))
    parameters = claim_columns("w1", claim(store))
    reaping = {"batch": 5, "guard_topic": [], "guard_limit": []}

    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET locked_until = now()"))
        assert connection.execute(upkeep.reap(), reaping).all() == []
        assert len(connection.execute(upkeep.still_held(), parameters).all()) == 1
        assert len(connection.execute(upkeep.renew(), {"lease": LEASE, **parameters}).all()) == 1


@pytest.fixture
def unsorted(database_url: URL) -> Iterator[PumpStore]:
    """
    A store whose server reads tables from their beginning: what comes in order is sorted, not found in an index.
    """
    options = "-c enable_indexscan=off -c enable_bitmapscan=off -c enable_indexonlyscan=off"
    engine = create_engine(database_url, connect_args={"options": options})
    connection = PrivateConnection(engine)
    yield PumpStore(connection, "w1", LEASE, 10.0)
    connection.close()
    engine.dispose()


def test_claims_of_one_come_by_time_and_then_by_construction(engine: Engine, unsorted: PumpStore) -> None:
    jobs = [Job("t", n) for n in range(6)]
    add(engine, *reversed(jobs))
    run(engine, "UPDATE job SET available_at = now() - make_interval(mins => CAST(CAST(payload AS text) AS int) / 2)")

    claimed = [claim(unsorted, 1)[0].payload for _ in jobs]

    assert claimed == [4, 5, 2, 3, 0, 1]


def test_topics_share_the_slots_of_a_claim(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("a") for _ in range(10)), *(Job("b") for _ in range(10)))

    assert Counter(one.topic for one in claim(store, 4, "a b")) == {"a": 2, "b": 2}


def test_a_job_that_was_due_forever_is_claimed(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    run(engine, "UPDATE job SET available_at = '-infinity'")

    assert [one.id for one in claim(store)] == [job_id]


def test_a_level_counts_only_what_is_ready_there(engine: Engine, store: PumpStore) -> None:
    topics = "t0 t1 t2 t3 t4 t5 t6"
    low, high, _ = add(engine, Job("t6", priority=-2), Job("t3", priority=2), Job("t1", priority=1, delay=HOUR))

    assert [one.id for one in claim(store, 10, topics)] == [high, low]


def test_a_renewal_moves_the_end_of_the_lease_alone(engine: Engine, store: PumpStore, heart: HeartbeatStore) -> None:
    (job_id,) = add(engine, Job("t"))
    (one,) = claim(store)
    before = row(engine, job_id)

    run(engine, "CREATE TABLE outbox (job_id uuid REFERENCES job (id))")
    with engine.begin() as consumer:
        consumer.execute(text("INSERT INTO outbox VALUES (:id)"), {"id": job_id})  # which keeps its row as it is
        (until,) = heart.renew([one])

    after = row(engine, job_id)
    assert changed(before, after) == {"locked_until", "updated_at"}
    assert until == after["locked_until"] == after["updated_at"] + LEASE


def expire(engine: Engine, *job_ids: UUID) -> None:
    """
    End the leases on some jobs, of the first longest ago.
    """
    for age, job_id in enumerate(reversed(job_ids), start=1):
        run(engine, f"UPDATE job SET locked_until = now() - interval '{age} m' WHERE id = :id", id=job_id)


def test_the_reaper_writes_a_requeue_and_nothing_else(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    run(engine, "UPDATE job SET requeues = 3, last_error = 'E', available_at = now() - interval '1 h'")
    claim(store)
    expire(engine, job_id)
    before = row(engine, job_id)

    (reaped,) = ReaperStore(on(engine)).reap({}, 10)

    after = row(engine, job_id)
    assert changed(before, after) == {"state", "requeues", "available_at", "updated_at", *LEASE_COLUMNS}
    assert (after["state"], after["requeues"], after["available_at"]) == ("pending", 4, after["updated_at"])
    assert reaped == (job_id, "t", 1, JobState.PENDING)


def test_the_poison_guard_writes_a_failure_and_keeps_the_lease_as_a_trace(engine: Engine, store: PumpStore) -> None:
    (job_id,) = add(engine, Job("t"))
    run(engine, "UPDATE job SET requeues = 2")
    claim(store)
    expire(engine, job_id)
    before = row(engine, job_id)

    (reaped,) = ReaperStore(on(engine)).reap({"t": 2}, 10)

    assert changed(before, row(engine, job_id)) == {"state", "last_error", "updated_at"}
    assert reaped.state is JobState.DEAD


def test_the_reaper_takes_those_first_whose_leases_ended_first(
    engine: Engine, store: PumpStore, unsorted: PumpStore
) -> None:
    first, second, third = add(engine, Job("t"), Job("t"), Job("t"))
    claim(store)
    expire(engine, third, first, second)
    reaping = {"batch": 1, "guard_topic": [], "guard_limit": []}

    reaped = [unsorted._connection.rows(upkeep.reap(), reaping, limit=10.0)[0].id for _ in range(3)]

    assert reaped == [third, first, second]


@pytest.mark.parametrize("state", ["pending", "failed", "done", "dead", "canceled"])
def test_the_reaper_touches_no_job_that_is_not_running(engine: Engine, store: PumpStore, state: str) -> None:
    (job_id,) = add(engine, Job("t"))
    claim(store)
    expire(engine, job_id)
    run(engine, "UPDATE job SET state = :state", state=state)
    before = row(engine, job_id)

    assert ReaperStore(on(engine)).reap({"t": 1}, 10) == []
    assert store.release([]) == []
    assert row(engine, job_id) == before


def test_the_reaper_passes_over_what_another_transaction_holds(engine: Engine, store: PumpStore) -> None:
    held, referenced = add(engine, Job("t"), Job("t"))
    run(engine, "CREATE TABLE outbox (job_id uuid REFERENCES job (id))")
    claim(store)
    expire(engine, held, referenced)
    reaper = ReaperStore(on(engine))

    with engine.begin() as consumer:
        consumer.execute(text("UPDATE job SET state = 'canceled' WHERE id = :id"), {"id": held})
        consumer.execute(text("INSERT INTO outbox VALUES (:id)"), {"id": referenced})
        assert [one.id for one in reaper.reap({}, 10)] == [referenced]


def test_what_a_worker_does_not_know_of_is_given_back(engine: Engine, store: PumpStore) -> None:
    add(engine, *(Job("t") for _ in range(6)))
    known, again, lost, held, over, empty = claim(store)
    store.exchange([Settlement(again, Outcome(Event.REQUEUED, refund=True)), Settlement(over, SUCCESS)], None)
    claim(store)  # it knows of the first claim on that one only
    run(engine, "UPDATE job SET attempts = 0 WHERE id = :id", id=empty.id)
    run(engine, "UPDATE job SET attempts = 3, claimed_at = :at WHERE id = :id", id=lost.id, at=known.claimed_at)
    run(engine, "CREATE TABLE outbox (job_id uuid REFERENCES job (id))")
    before = row(engine, lost.id)

    with engine.begin() as consumer:
        consumer.execute(text("INSERT INTO outbox VALUES (:id)"), {"id": lost.id})
        consumer.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": held.id})
        released = store.release([known, again])

    after = row(engine, lost.id)
    assert {one.id: one.attempts for one in released} == {again.id: 0, lost.id: 2, empty.id: 0}
    assert {(one.topic, one.state) for one in released} == {("t", JobState.PENDING)}
    assert changed(before, after) == {"state", "attempts", "updated_at", *LEASE_COLUMNS}
    assert [row(engine, one.id)["state"] for one in (known, held, over)] == ["processing", "processing", "done"]
