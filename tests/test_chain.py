"""
``claim.chain`` and ``claim.on_success``: they come true in the transaction that writes the job as done, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from tests.databases import HERE
from tests.sides import PATIENCE, MakeSide, Side, write
from tests.waiting import eventually, row

LEVELS = [None, "AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"]
ONCE: dict[str, Any] = {"workers": 1, "backoff_base": "1h", "backoff_max": "1h"}
both_kinds_of_handler = pytest.mark.parametrize("transactional", [False, True])
levels = pytest.mark.parametrize("level", LEVELS)
only_async = pytest.mark.parametrize("make_side", ["async"], indirect=True)


def register(side: Side, body: Callable[[brooq.Claim], Any], *, transactional: bool, topic: str = "t") -> None:
    """
    Register *body*, called with the claim, as either kind of handler; a transactional one has the effect 1.
    """

    def handle(claim: brooq.Claim, session: Session) -> Any:
        write(session, 1)
        return body(claim)

    if transactional:
        side.transactional(topic, handle)
    else:
        side.ordinary(topic, body)


def run_one(side: Side, body: Callable[[brooq.Claim], Any], *, transactional: bool = False) -> dict[str, Any]:
    """
    Run one job whose handler is *body*, and return its row after the first attempt, which is counted once.
    """
    register(side, body, transactional=transactional)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()
    found = side.reaches(job_id, "done", "failed", "canceled", "dead")
    assert sum(side.labels("t").values()) == 1
    assert (side.notes() != []) == (transactional and found["state"] == "done")
    return found


# -- chain


@levels
@both_kinds_of_handler
def test_chained_jobs_exist_once_the_job_is_done_and_tell_what_chained_them(
    make_side: MakeSide, level: str | None, *, transactional: bool
) -> None:
    side = make_side(level=level, **ONCE)

    def handle(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job("next", 1), brooq.Job("next", 2, priority=1))
        claim.chain(brooq.Job("next", 3, delay=timedelta(hours=1)))
        assert side.jobs("next") == []

    found = run_one(side, handle, transactional=transactional)

    assert found["state"] == "done"
    jobs = side.jobs("next")
    assert [(job.payload, job.priority) for job in jobs] == [(1, 0), (2, 1), (3, 0)]
    assert {job.meta["chained_by"] for job in jobs} == {str(found["id"])}
    assert jobs[2].available_at - jobs[2].created_at == timedelta(hours=1)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("no"), "failed"),
        (SystemExit(1), "failed"),
        (brooq.RetryLater(timedelta(hours=1)), "failed"),
        (brooq.PreserveAttempt(), "failed"),
        (brooq.CancelJob(), "canceled"),
    ],
    ids=lambda value: type(value).__name__,
)
@both_kinds_of_handler
def test_what_a_failed_attempt_chained_does_not_exist(
    make_side: MakeSide, error: BaseException, state: str, *, transactional: bool
) -> None:
    side = make_side(**ONCE)
    called: list[Any] = []

    def handle(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job("next"))
        claim.on_success(called.append)
        raise error

    found = run_one(side, handle, transactional=transactional)

    assert (found["state"], side.jobs("next"), called) == (state, [], [])


def refusing_decimals(value: Any) -> str:
    def refuse(found: object) -> Any:
        raise ValueError(f"{found!r} is not for this database")

    return json.dumps(value, default=refuse)


@levels
@both_kinds_of_handler
def test_a_chained_job_that_became_invalid_fails_the_attempt_and_nothing_of_it_commits(
    make_side: MakeSide, level: str | None, *, transactional: bool
) -> None:
    side = make_side(level=level, engine_options={"json_serializer": refusing_decimals}, **ONCE)

    def handle(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job("next", "valid"), job := brooq.Job("next", {}), brooq.Job("next", idempotency_key="k"))
        job.payload["value"] = Decimal(1)

    found = run_one(side, handle, transactional=transactional)

    assert (found["state"], side.jobs("next")) == ("failed", [])
    assert found["last_error"].startswith("PayloadError")


@levels
@both_kinds_of_handler
def test_a_chained_duplicate_is_no_error_and_no_second_row(
    make_side: MakeSide, level: str | None, *, transactional: bool
) -> None:
    side = make_side(level=level, **ONCE)
    side.add(brooq.Job("next", "there", idempotency_key="a"))
    given: list[brooq.Job] = []

    def handle(claim: brooq.Claim) -> None:
        given.extend(brooq.Job("next", "new", idempotency_key=key) for key in ("a", "b", "b"))
        claim.chain(*given)
        claim.chain(given[1])

    assert run_one(side, handle, transactional=transactional)["state"] == "done"

    assert [(job.payload, job.idempotency_key) for job in side.jobs("next")] == [("there", "a"), ("new", "b")]
    assert [job.created for job in given] == [False, True, False]


def test_a_chained_job_that_has_a_row_already_is_left_as_it_is(make_side: MakeSide) -> None:
    side = make_side(**ONCE)

    def handle(claim: brooq.Claim) -> None:
        job = brooq.Job("next", "there")
        with Session(side.engine) as session, session.begin():
            session.add(job)
        claim.chain(job, brooq.Job("next", "new"))

    assert run_one(side, handle)["state"] == "done"

    assert [(job.payload, job.meta is None) for job in side.jobs("next")] == [("there", True), ("new", False)]


@both_kinds_of_handler
def test_one_object_that_is_chained_again_and_again_is_one_job(make_side: MakeSide, *, transactional: bool) -> None:
    side = make_side(**ONCE)
    always = brooq.Job("next")

    def handle(claim: brooq.Claim) -> None:
        claim.chain(always, always)
        claim.chain(always)

    if transactional:
        side.transactional("t", lambda claim, _: handle(claim))
    else:
        side.ordinary("t", handle)
    ids = side.add(brooq.Job("t"), brooq.Job("t"))
    side.start()

    assert [side.reaches(job_id, "done", "failed")["state"] for job_id in ids] == ["done", "done"]
    assert [job.meta["chained_by"] for job in side.jobs("next")] == [str(ids[0])]


@contextmanager
def longest_lock_wait(side: Side) -> Any:
    """
    Watch how long anybody waits for a lock, in seconds.
    """
    waits = [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            waits.append(side.scalar(LOCK_WAIT) or 0.0)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield lambda: max(waits)
    finally:
        over.set()
        watching.join()


LOCK_WAIT = (
    f"SELECT extract(epoch FROM max(clock_timestamp() - waitstart))::float FROM pg_locks WHERE NOT granted AND {HERE}"
)


@both_kinds_of_handler
@pytest.mark.parametrize("committed", [False, True])
def test_a_chained_key_that_a_stranger_is_about_to_write_is_waited_for_in_short_turns(
    make_side: MakeSide, *, transactional: bool, committed: bool
) -> None:
    side = make_side(**ONCE)
    register(
        side, lambda claim: claim.chain(brooq.Job("next", "ours", idempotency_key="k")), transactional=transactional
    )
    (job_id,) = side.add(brooq.Job("t"))
    with longest_lock_wait(side) as longest, Session(side.engine) as session:
        session.add(brooq.Job("next", "theirs", idempotency_key="k"))
        session.flush()
        side.start()
        # The third wait in turn.
        starts: set[Any] = set()
        eventually(lambda: starts.update(side.column(WAIT_STARTS)) or len(starts) >= 3)  # type: ignore[func-returns-value]
        assert row(side.engine, job_id)["state"] == "processing"
        session.commit() if committed else session.rollback()
        side.reaches(job_id, "done")

    assert [job.payload for job in side.jobs("next")] == ["theirs" if committed else "ours"]
    assert 0.1 < longest() < 1.0
    assert side.labels("t") == {"done": 1}
    assert side.scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


WAIT_STARTS = f"SELECT waitstart FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL AND {HERE}"


@both_kinds_of_handler
def test_a_job_that_is_canceled_while_it_runs_chains_nothing_and_calls_nothing_back(
    make_side: MakeSide, *, transactional: bool
) -> None:
    side = make_side(**ONCE)
    called: list[Any] = []

    def handle(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job("next"))
        claim.on_success(side.callback(lambda session: write(session, 2)))
        claim.on_success(side.callback(called.append))
        with Session(side.engine) as session, session.begin():
            assert brooq.cancel(session, claim.id)

    register(side, handle, transactional=transactional)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "canceled")
    assert side.labels("t") == {"lost": 1}
    assert (side.jobs("next"), side.notes()) == ([], [])


def test_chained_jobs_run_at_once(make_side: MakeSide) -> None:
    side = make_side(workers=1, poll_interval="30s")
    side.ordinary("0", lambda claim: claim.chain(brooq.Job("1")))
    side.ordinary("1", lambda claim: claim.chain(brooq.Job("2", idempotency_key="k")))
    side.transactional("2", lambda _, session: write(session, 1))
    side.add(brooq.Job("0"))

    side.start()

    eventually(lambda: side.notes() == [1])


def test_a_result_is_kept_beside_a_chain(make_side: MakeSide) -> None:
    side = make_side()

    def handle(claim: brooq.Claim) -> str:
        claim.chain(brooq.Job("next"))
        return "kept"

    side.ordinary("t", handle, keep_result=True)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    assert side.reaches(job_id, "done")["result"] == "kept"


@both_kinds_of_handler
def test_a_result_that_only_the_server_refuses_is_left_out(
    make_side: MakeSide, caplog: pytest.LogCaptureFixture, *, transactional: bool
) -> None:
    side = make_side(engine_options={"json_serializer": lambda value: "1" + "0" * value}, max_attempts=1)

    def handle(claim: brooq.Claim) -> int:
        claim.chain(brooq.Job("next", 1))
        return 200_000

    if transactional:
        side.transactional("t", lambda claim, _: handle(claim), keep_result=True)
    else:
        side.ordinary("t", handle, keep_result=True)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    found = side.reaches(job_id, "done", "dead")
    assert (found["state"], found["result"], side.labels("t")) == ("done", None, {"done": 1})
    assert len(side.jobs("next")) == 1
    assert [record for record in caplog.records if record.levelno == logging.ERROR and "result" in record.message]


# -- on_success


@levels
@both_kinds_of_handler
def test_callbacks_run_in_order_in_the_transaction_that_writes_done(
    make_side: MakeSide, level: str | None, *, transactional: bool
) -> None:
    side = make_side(level=level, **ONCE)
    called: list[str] = []

    def handle(claim: brooq.Claim) -> None:
        def first(session: Session) -> None:
            assert (side.notes(), row(side.engine, claim.id)["state"]) == ([], "processing")
            called.append("first")
            write(session, 10)
            claim.on_success(side.callback(third))
            claim.chain(brooq.Job("next", "from a callback"))

        def second(session: Session) -> None:
            called.append("second")
            session.execute(text("UPDATE note SET n = n + 1 WHERE n = 10"))

        def third(session: Session) -> None:
            called.append("third")
            session.add(brooq.Job("next", "added"))

        claim.on_success(side.callback(first))
        claim.on_success(side.callback(second))
        claim.chain(brooq.Job("next", "chained"))

    register(side, handle, transactional=transactional)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    assert side.reaches(job_id, "done", "failed")["state"] == "done"
    assert called == ["first", "second", "third"]
    assert side.notes() == ([1, 11] if transactional else [11])
    assert {job.payload for job in side.jobs("next")} == {"chained", "from a callback", "added"}
    assert side.labels("t") == {"done": 1}


def raises(session: Session) -> None:
    write(session, 2)
    raise ValueError("no")


def fails_in_sql(session: Session) -> None:
    write(session, 2)
    session.execute(text("SELECT 1/0"))


def swallows(session: Session) -> None:
    write(session, 2)
    with contextlib.suppress(Exception):
        session.execute(text("SELECT 1/0"))


def commits(session: Session) -> None:
    write(session, 2)
    session.commit()


def commits_underneath(session: Session) -> None:
    write(session, 2)
    session.connection().get_transaction().commit()  # type: ignore[union-attr] # there is one


def rolls_back(session: Session) -> None:
    session.rollback()


def exits(session: Session) -> None:
    write(session, 2)
    raise SystemExit(4)


@pytest.mark.parametrize(
    ("callback", "error"),
    [
        (raises, "ValueError: no"),
        (fails_in_sql, "DataError: division by zero"),
        (swallows, "InternalError: current transaction is aborted"),
        (commits, "TransactionMisused"),
        (commits_underneath, "TransactionMisused"),
        (rolls_back, "TransactionMisused"),
        (exits, "SystemExit: 4"),
    ],
)
@both_kinds_of_handler
def test_a_callback_that_goes_wrong_fails_the_attempt_and_nothing_of_it_commits(
    make_side: MakeSide, callback: Callable[[Session], None], error: str, *, transactional: bool
) -> None:
    side = make_side(**ONCE)

    def handle(claim: brooq.Claim) -> None:
        claim.chain(brooq.Job("next"))
        claim.on_success(side.callback(callback))

    found = run_one(side, handle, transactional=transactional)

    assert found["state"] == "failed"
    assert found["last_error"].startswith(error)
    assert side.jobs("next") == []


@only_async
def test_with_an_async_engine_an_async_handlers_callback_gets_an_async_session_in_the_loop(
    make_side: MakeSide,
) -> None:
    side = make_side()
    seen: list[Any] = []

    @side.queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        async def call(session: AsyncSession) -> None:
            seen.append((type(session), threading.current_thread() is side.loop_thread))
            await session.execute(text("INSERT INTO note VALUES (1)"))

        claim.on_success(call)

    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "done")
    assert (seen, side.notes()) == ([(AsyncSession, True)], [1])


@only_async
def test_with_an_async_engine_a_plain_handlers_callback_gets_a_session_on_a_thread(make_side: MakeSide) -> None:
    side = make_side()
    seen: list[Any] = []

    @side.queue.handler("t")
    def handle(claim: brooq.Claim) -> None:
        def call(session: Session) -> None:
            seen.append((isinstance(session, Session), threading.current_thread() is side.loop_thread))
            write(session, 1)

        claim.on_success(call)
        claim.chain(brooq.Job("next"))

    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "done")
    assert (seen, side.notes(), len(side.jobs("next"))) == ([(True, False)], [1], 1)


@pytest.mark.parametrize("make_side", ["plain"], indirect=True)
def test_with_a_plain_engine_an_async_handlers_callback_gets_a_session_on_a_thread_and_may_block(
    make_side: MakeSide,
) -> None:
    side = make_side()
    loops: list[threading.Thread] = []
    seen: list[Any] = []
    blocked, others_ran = threading.Event(), threading.Event()

    @side.queue.handler("t")
    async def handle(claim: brooq.Claim) -> None:
        loops.append(threading.current_thread())

        def call(session: Session) -> None:
            seen.append((isinstance(session, Session), threading.current_thread() in loops))
            write(session, 1)
            blocked.set()
            others_ran.wait(PATIENCE)

        claim.on_success(call)
        claim.chain(brooq.Job("next"))

    @side.queue.handler("other")
    async def other(claim: brooq.Claim) -> None:
        while not blocked.is_set():
            await asyncio.sleep(0)
        others_ran.set()

    (job_id,) = side.add(brooq.Job("t"))
    side.start()
    assert blocked.wait(PATIENCE)
    (other_id,) = side.add(brooq.Job("other"))

    side.reaches(other_id, "done")
    side.reaches(job_id, "done")
    assert others_ran.is_set()
    assert (seen, side.notes(), len(side.jobs("next"))) == ([(True, False)], [1], 1)


@both_kinds_of_handler
def test_a_callback_of_the_wrong_kind_fails_the_attempt_with_a_word_about_it(
    make_side: MakeSide, *, transactional: bool
) -> None:
    side = make_side(**ONCE)

    async def coroutine(_: Any) -> None:
        """
        What a plain handler must not give.
        """

    def function(_: Any) -> None:
        """
        What an async one must not.
        """

    found = run_one(
        side,
        lambda claim: claim.on_success(coroutine if side.kind == "plain" else function),
        transactional=transactional,
    )

    assert found["state"] == "failed"
    assert found["last_error"].startswith("TypeError: on_success()")


def test_the_surroundings_of_a_handler_are_those_of_its_callbacks(make_side: MakeSide) -> None:
    entered: list[bool] = []

    @contextmanager
    def around() -> Any:
        entered.append(True)
        yield
        entered.clear()

    side = make_side(queue_options={"around": around})
    seen: list[bool] = []

    def handle(claim: brooq.Claim) -> None:
        claim.on_success(side.callback(lambda _: seen.extend(entered)))

    side.ordinary("t", handle)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "done")
    assert seen == [True]


def test_surroundings_that_fail_after_the_commit_are_told_of_and_change_nothing(
    make_side: MakeSide, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def around() -> Any:
        yield
        raise ValueError("while leaving")

    side = make_side(queue_options={"around": around})
    side.transactional("t", lambda _, session: write(session, 1))
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "done")
    eventually(lambda: "while leaving" in caplog.text)
    assert side.labels("t") == {"done": 1}
