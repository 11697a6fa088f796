"""
Canceling and replaying many jobs: beside workers and each other, in slices, with counts that are true.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, event, text

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import operations
from sqlalchemy_brooq.browse import Filter
from sqlalchemy_brooq.operations import CANCELABLE, Counts, Ids, cancel_jobs, choose, replay_jobs
from sqlalchemy_brooq.vocabulary import CLAIMABLE, Enqueued, JobState
from tests.queues import MakeQueue, all_settled, states
from tests.recording import listening, noted
from tests.test_browse import in_short, put
from tests.waiting import eventually, row

DEAD = Filter(states=frozenset({JobState.DEAD}))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SLICE", 10)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "PAUSES", (0.01,))


def cancel(engine: Engine, ids: list[UUID], **options: Any) -> Counts:
    counts = Counts()
    cancel_jobs(in_short(engine), Ids(sorted(ids)), counts=counts, **options)
    assert counts.total == len(ids)
    return counts


def replay(engine: Engine, ids: list[UUID], **options: Any) -> Counts:
    counts = Counts()
    replay_jobs(in_short(engine), Ids(sorted(ids)), counts=counts, **options)
    assert counts.total == len(ids)
    return counts


def test_any_number_of_ids_comes_back_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SLICE", 3)
    given = [UUID(int=n) for n in range(8)]

    ids = Ids(given)

    assert len(ids) == 8
    assert list(ids.slices()) == [given[:3], given[3:6], given[6:]]
    assert list(Ids().slices()) == []


def test_a_filter_chooses_what_was_there_and_counts_it_by_state(engine: Engine) -> None:
    ids = [*put(engine, "pending", count=3), *put(engine, "failed", count=2)]
    put(engine, "pending", topic="other")
    put(engine, "done")

    chosen = choose(in_short(engine), Filter(topics=("t",), states=CLAIMABLE))
    put(engine, "pending")

    assert [one for part in chosen.ids.slices() for one in part] == sorted(ids)
    assert chosen.counts == {"pending": 3, "failed": 2}


# -- cancel


def test_each_job_counts_as_what_became_of_it(engine: Engine) -> None:
    ids = {state: put(engine, state, count=2) for state in JobState}
    nowhere = UUID(int=7)

    counts = cancel(engine, [nowhere, *(one for some in ids.values() for one in some)])

    assert counts == Counts(changed=6, already=6, missing=[nowhere])
    assert states(engine) == {"canceled": 8, "done": 2, "dead": 2}
    assert row(engine, ids[JobState.PROCESSING][0])["locked_by"] == "w1"  # a trace


def test_a_job_that_was_claimed_since_it_was_chosen_is_left_alone_if_only_waiting_ones_were_meant(
    engine: Engine,
) -> None:
    pending, (processing,) = put(engine, "pending", count=2), put(engine, "processing")

    counts = cancel(engine, [*pending, processing], states={JobState.PENDING})

    assert counts == Counts(changed=2, unfit=1)
    assert row(engine, processing)["state"] == "processing"


def test_the_holders_of_running_jobs_are_woken(engine: Engine, database_url: URL) -> None:
    ids = put(engine, "processing", count=3)

    with listening(database_url) as heard:
        cancel(engine, ids)

        assert heard() == ["cancel:w1"]


def test_many_jobs_go_in_slices_each_of_which_is_there_at_once(engine: Engine, small_slices: None) -> None:
    ids, canceled = put(engine, "pending", count=35), []

    cancel(engine, ids, told=lambda: canceled.append(states(engine).get("canceled")))

    assert canceled == [10, 20, 30, 35]


def test_what_is_broken_off_has_counted_what_is_done(engine: Engine, small_slices: None) -> None:
    ids, counts = put(engine, "pending", count=35), Counts()

    def told() -> None:
        if counts.total >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cancel_jobs(in_short(engine), Ids(sorted(ids)), counts=counts, told=told)

    assert counts == Counts(changed=20)
    assert states(engine) == {"canceled": 20, "pending": 15}


def test_jobs_that_somebody_holds_come_last_and_are_waited_for_without_a_lock(
    engine: Engine, small_slices: None
) -> None:
    ids = put(engine, "pending", count=25)
    held = sorted(ids)[:15]
    released = threading.Event()

    def told() -> None:
        if states(engine) == {"canceled": 10, "pending": 15} and not released.is_set():
            consumer.rollback()
            released.set()

    with engine.connect() as consumer:
        consumer.execute(text("SELECT id FROM job WHERE id = ANY(:ids) FOR UPDATE"), {"ids": held})
        counts = cancel(engine, ids, told=told)

    assert released.is_set()
    assert counts == Counts(changed=25)


def test_jobs_that_somebody_holds_to_the_end_are_left_alone_and_counted(engine: Engine, no_patience: None) -> None:
    ids = put(engine, "pending", count=5)

    with engine.begin() as consumer:
        consumer.execute(text("SELECT id FROM job WHERE id = ANY(:ids) FOR UPDATE"), {"ids": ids[:2]})
        counts = cancel(engine, ids)

    assert counts == Counts(changed=3, held=2)


def test_a_cancel_beside_workers_counts_what_it_canceled_and_no_more(
    engine: Engine, make_queue: MakeQueue, small_slices: None
) -> None:
    queue = make_queue(engine)
    queue.register("t", lambda claim: claim.wait(0.001))
    ids = put(engine, "pending", count=400)

    with queue:
        eventually(lambda: states(engine).get("done", 0) > 10)
        counts = cancel(engine, ids)
        eventually(all_settled(engine))

    assert counts.held == counts.unfit == 0
    assert states(engine) == {"canceled": counts.changed, "done": counts.already}
    assert counts.changed > 0


def test_two_cancels_of_the_same_jobs_share_them(engine: Engine, small_slices: None) -> None:
    ids = put(engine, "pending", count=300)

    one, other = at_once(lambda: cancel(engine, ids))

    assert one.changed + other.changed == 300
    assert one.already == other.changed


def at_once(work: Callable[[], Counts]) -> list[Counts]:
    together = threading.Barrier(2)

    def begin(_: int) -> Counts:
        together.wait()
        return work()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(begin, range(2)))


# -- replay


def test_a_replay_makes_one_job_for_each_that_is_over_and_tells_of_those_that_were_made(engine: Engine) -> None:
    ids = {state: put(engine, state, count=2, priority="1", payload="'{\"n\": 1.50}'") for state in JobState}
    over = [*ids[JobState.DONE], *ids[JobState.DEAD], *ids[JobState.CANCELED]]
    active = [*ids[JobState.PENDING], *ids[JobState.PROCESSING], *ids[JobState.FAILED]]
    with engine.begin() as connection:
        first = brooq.replay(connection, over[0])
    nowhere = UUID(int=7)
    replays: dict[UUID, Enqueued] = {}

    counts = replay(engine, [*over, *active, nowhere], replays=replays)

    assert counts == Counts(changed=5, already=1, unfit=6, missing=[nowhere])
    assert replays.pop(over[0]) == (first.id, False)
    assert replays.keys() == {*over[1:]}
    for original, (new, created) in replays.items():
        assert created
        with engine.begin() as connection:
            assert brooq.replay(connection, original) == (new, False)  # the same key, the same job
        found, like = row(engine, new), row(engine, first.id)
        assert found["meta"] == {"replays": str(original)}
        assert {**found, **dict.fromkeys(UNLIKE)} == {**like, **dict.fromkeys(UNLIKE)}


UNLIKE = ("id", "idempotency_key", "meta", "created_at", "updated_at", "available_at")


def test_workers_are_woken_by_a_replay(engine: Engine, database_url: URL) -> None:
    ids = [*put(engine, "dead", count=3), *put(engine, "dead", topic="other")]

    with listening(database_url) as heard:
        replay(engine, ids)

        assert sorted(heard()) == ["other", "t"]


def test_queues_of_this_process_are_told_as_by_a_producer(engine: Engine) -> None:
    dead, running = put(engine, "dead", count=3), put(engine, "processing")

    with noted() as notes:
        replay(engine, dead)
        cancel(engine, running)

    assert [(dict(note.counts), set(note.holders)) for note in notes] == [({("t", True): 3}, set()), ({}, {"w1"})]


def test_two_replays_of_the_same_jobs_make_each_once(engine: Engine, small_slices: None) -> None:
    ids = put(engine, "dead", count=300)

    one, other = at_once(lambda: replay(engine, ids))

    assert one.changed + other.changed == 300
    assert one.already == other.changed
    assert states(engine) == {"dead": 300, "pending": 300}


def test_a_replay_that_somebody_else_is_about_to_make_is_left_to_them_and_the_others_are_made(
    engine: Engine, no_patience: None
) -> None:
    ids = sorted(put(engine, "dead", count=7))

    with engine.begin() as consumer:
        brooq.replay(consumer, ids[4])
        counts = replay(engine, ids)

    assert counts == Counts(changed=6, held=1)
    assert replay(engine, ids) == Counts(already=7)


def test_the_work_names_its_isolation_level_whatever_the_engine_has(database_url: URL, engine: Engine) -> None:
    serializable = engine.execution_options(isolation_level="SERIALIZABLE")
    levels = set()
    event.listen(
        serializable,
        "before_cursor_execute",
        lambda connection, *_: levels.add(connection.get_isolation_level()),
    )
    ids = put(engine, "dead", count=3)

    assert choose(in_short(serializable), DEAD).counts == {"dead": 3}
    assert replay(serializable, ids).changed == 3
    assert cancel(serializable, ids).already == 3
    assert levels == {"READ COMMITTED"}


def test_every_state_is_one_that_can_be_canceled_or_replayed() -> None:
    assert {*CANCELABLE} == {JobState.PENDING, JobState.PROCESSING, JobState.FAILED}
