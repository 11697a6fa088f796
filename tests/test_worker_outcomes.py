"""
What becomes of a job: each way in which a handler can end, and what its row then says.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

import sqlalchemy_brooq as brooq
from tests.queues import MakeQueue, add, all_settled
from tests.waiting import eventually, row


class Custom(BaseException):
    pass


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class Drawing(Exception):
    def __str__(self) -> str:
        return "a\x00b \ud800 " + "x" * 10_000


def run_one(
    engine: Engine,
    make_queue: MakeQueue,
    kind: str,
    body: Any,
    *,
    until: tuple[str, ...] = ("done", "dead", "canceled"),
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """
    Run one job whose handler is *body*, and return its row once it is in one of the states of *until*.
    """
    (job_id,) = add(engine, brooq.Job("t", {"n": 1}))
    queue = make_queue(engine, **settings)
    register(queue, "t", kind, body, **(options or {}))
    queue.start()
    eventually(lambda: row(engine, job_id)["state"] in until, message=f"{kind} {row(engine, job_id)}")
    queue.stop()
    return dict(row(engine, job_id))


def register(queue: brooq.Queue, topic: str, kind: str, body: Any, **options: Any) -> None:
    if kind == "plain":
        queue.register(topic, body, brooq.HandlerOptions(**options))
        return

    async def handle(claim: brooq.Claim) -> Any:
        await asyncio.sleep(0)
        return body(claim)

    queue.register(topic, handle, brooq.HandlerOptions(**options))


def raising(error: BaseException) -> Any:
    def handle(claim: brooq.Claim) -> None:
        raise error

    return handle


both = pytest.mark.parametrize("kind", ["plain", "async"])


@both
def test_a_return_is_done(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    found = run_one(engine, make_queue, kind, lambda claim: "ignored")

    assert (found["state"], found["attempts"], found["last_error"], found["result"]) == ("done", 1, None, None)
    assert found["locked_by"]
    assert found["updated_at"] >= found["claimed_at"] >= found["created_at"]


@both
def test_a_failure_is_tried_again_until_the_attempts_are_used_up(
    engine: Engine, make_queue: MakeQueue, kind: str
) -> None:
    found = run_one(engine, make_queue, kind, raising(ValueError("no luck")))

    assert (found["state"], found["attempts"], found["last_error"]) == ("dead", 3, "ValueError: no luck")


@both
def test_retry_later_waits_as_long_as_it_says_up_to_the_limit(
    engine: Engine, make_queue: MakeQueue, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    signal = brooq.RetryLater(timedelta(hours=2), "not yet")
    found = run_one(engine, make_queue, kind, raising(signal), until=("failed",), backoff_max="1h")

    assert found["available_at"] - found["updated_at"] == timedelta(hours=1)
    assert found["last_error"] == "RetryLater: not yet"
    assert caplog.text.count("RetryLater(2h) was cut to the backoff_max of 1h") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@both
def test_a_preserved_attempt_is_given_back_and_never_kills(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    calls: list[int] = []

    def handle(claim: brooq.Claim) -> None:
        calls.append(claim.attempt)
        if len(calls) < 6:
            raise brooq.PreserveAttempt("the other side sleeps")

    found = run_one(engine, make_queue, kind, handle, max_attempts=1)

    assert calls == [1] * 6
    assert (found["state"], found["attempts"]) == ("done", 1)


@both
def test_a_handler_can_call_its_job_off(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    found = run_one(engine, make_queue, kind, raising(brooq.CancelJob("no longer wanted")))

    assert (found["state"], found["attempts"]) == ("canceled", 1)


@both
def test_a_signal_is_found_behind_another_exception(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    def handle(claim: brooq.Claim) -> None:
        try:
            raise ConnectionError("mail server")
        except ConnectionError as error:
            raise RuntimeError("sending failed") from brooq.CancelJob(str(error))

    assert run_one(engine, make_queue, kind, handle)["state"] == "canceled"


@both
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        Custom("own"),
        asyncio.CancelledError(),
        StopIteration(),
        BaseExceptionGroup("many", [ValueError("x"), Custom("y")]),
        Hostile(),
        Drawing(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_a_failure_and_the_worker_lives_on(
    engine: Engine, make_queue: MakeQueue, kind: str, error: BaseException
) -> None:
    bad, good = add(engine, brooq.Job("bad"), brooq.Job("good"))
    queue = make_queue(engine, workers=1, backoff_base="1h", backoff_max="1h")
    register(queue, "bad", kind, raising(error))
    register(queue, "good", kind, lambda claim: None)
    queue.start()

    eventually(lambda: row(engine, good)["state"] == "done", timeout=5)

    found = eventually(lambda: (r := row(engine, bad))["state"] == "failed" and r)
    assert found["attempts"] == 1
    # Python turns a StopIteration that leaves a coroutine into a RuntimeError.
    assert type(error).__name__ in found["last_error"] or "RuntimeError" in found["last_error"]
    assert found["locked_by"] is None
    assert len(found["last_error"]) <= 4000
    # The row is written a moment before the worker hears of it.
    eventually(lambda: (health := queue.health()) is not None and health.healthy and health.leases == 0)


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Stuck(Exception):
    def __str__(self) -> str:
        threading.Event().wait(3)
        return "at last"


def endless() -> BaseException:
    error: BaseException = ValueError("first")
    for _ in range(5000):
        later = ValueError("later")
        later.__cause__ = error
        error = later
    return error


@both
@pytest.mark.parametrize("error", [Leaving(), endless()], ids=["a text that exits", "a chain without end"])
def test_an_error_that_can_not_be_read_is_recorded_all_the_same(
    engine: Engine, make_queue: MakeQueue, kind: str, error: BaseException
) -> None:
    found = run_one(engine, make_queue, kind, raising(error), max_attempts=1)

    assert found["state"] == "dead"
    assert found["last_error"].startswith((f"{type(error).__name__}: (its __str__ raised SystemExit)", "ValueError"))


def test_an_error_whose_text_takes_forever_is_ended_by_the_ceiling(engine: Engine, make_queue: MakeQueue) -> None:
    limits: dict[str, Any] = {"attempt_timeout": "100ms", "max_execution_timeout": "300ms"}

    found = run_one(engine, make_queue, "plain", raising(Stuck()), max_attempts=1, **limits)

    assert (found["state"], found["last_error"].partition(":")[0]) == ("dead", "MaxExecutionExceeded")


def test_a_result_that_is_huge_is_left_out_and_holds_nobody_up(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    found = run_one(engine, make_queue, "plain", lambda claim: "x" * 2**24, options={"keep_result": True})

    assert (found["state"], found["result"]) == ("done", None)
    assert "at most 8388608 are kept" in caplog.text


def test_a_database_error_shows_the_servers_message_and_no_values(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE card (number text PRIMARY KEY)"))

    def handle(claim: brooq.Claim) -> None:
        with engine.begin() as connection:
            for _ in range(2):
                connection.execute(text("INSERT INTO card VALUES (:card)"), {"card": "4111" * 4})

    found = run_one(engine, make_queue, "plain", handle)

    assert found["last_error"].startswith(IntegrityError.__name__)
    assert "duplicate key value violates unique constraint" in found["last_error"]
    assert "4111" * 4 not in found["last_error"] + caplog.text
    assert "card_pkey" in caplog.text  # the traceback is there


@both
def test_a_result_is_kept_where_the_handler_opted_in(engine: Engine, make_queue: MakeQueue, kind: str) -> None:
    found = run_one(engine, make_queue, kind, lambda claim: {"sum": [1, None]}, options={"keep_result": True})

    assert found["result"] == {"sum": [1, None]}


@both
@pytest.mark.parametrize(
    "result", [object(), float("nan"), "\x00", {1, 2}, b"bytes"], ids=lambda value: type(value).__name__
)
def test_a_result_that_can_not_be_stored_leaves_the_job_done_and_an_error_in_the_log(
    engine: Engine, make_queue: MakeQueue, kind: str, result: object, caplog: pytest.LogCaptureFixture
) -> None:
    found = run_one(engine, make_queue, kind, lambda claim: result, options={"keep_result": True})

    assert (found["state"], found["result"]) == ("done", None)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "can't be stored; the job is done without it: PayloadError: the result " in record.message


def test_a_coroutine_that_a_plain_handler_returns_is_a_failure_not_a_success(
    engine: Engine, make_queue: MakeQueue
) -> None:
    async def forgotten() -> None: ...

    found = run_one(engine, make_queue, "plain", lambda claim: forgotten())

    assert (found["state"], found["last_error"].partition(":")[0]) == ("dead", "TypeError")


def test_a_result_that_only_the_server_refuses_spoils_nothing_else(engine: Engine, make_queue: MakeQueue) -> None:
    add(engine, *(brooq.Job("t", n) for n in range(20)))
    queue = make_queue(engine, workers=20)
    together = threading.Barrier(20)

    def handle(claim: brooq.Claim) -> object:
        together.wait(10)
        return 10**200_000 if claim.payload == 7 else claim.payload

    import sys

    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        queue.register("t", handle, brooq.HandlerOptions(keep_result=True))
        queue.start()
        eventually(all_settled(engine))
    finally:
        sys.set_int_max_str_digits(limit)

    with engine.connect() as connection:
        rows = connection.execute(text("SELECT payload, result, attempts FROM job ORDER BY id")).all()
    assert [(payload, result) for payload, result, _ in rows] == [(n, None if n == 7 else n) for n in range(20)]
    assert {attempts for *_, attempts in rows} == {1}


def test_a_payload_that_can_not_be_decoded_is_that_attempts_failure_alone(
    engine: Engine, make_queue: MakeQueue
) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (topic, payload) VALUES ('t', CAST(repeat('9', 5000) AS jsonb))"))
    (good,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=2)
    queue.register("t", lambda claim: None)

    queue.start()

    eventually(all_settled(engine))
    with engine.connect() as connection:
        states = connection.execute(text("SELECT state, attempts, last_error FROM job ORDER BY state")).all()
    assert row(engine, good)["state"] == "done"
    assert (states[0][0], states[0][1]) == ("dead", 2)
    assert states[0][2].startswith("ValueError: Exceeds the limit")


@pytest.mark.parametrize(
    ("base", "cap", "low", "high"), [("5s", "60s", 30, 60), ("365d", "365d", 15_768_000, 31_536_000)]
)
def test_no_number_of_attempts_breaks_the_backoff(
    engine: Engine, make_queue: MakeQueue, base: str, cap: str, low: int, high: int
) -> None:
    numbers = [15, 46, 63, 64, 309, 1023, 1024, 5000, 999_998, 999_999]
    ids = add(engine, *(brooq.Job("t", number) for number in numbers))
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET attempts = CAST(payload AS text)::int"))
    queue = make_queue(engine, max_attempts=1_000_000, backoff_base=base, backoff_max=cap)
    queue.register("t", raising(ValueError("again")))

    queue.start()

    eventually(lambda: all(row(engine, job_id)["state"] in ("failed", "dead") for job_id in ids))
    rows = [row(engine, job_id) for job_id in ids]
    assert [found["attempts"] for found in rows] == [number + 1 for number in numbers]
    assert [found["state"] for found in rows] == ["failed"] * 9 + ["dead"]
    waits = [(found["available_at"] - found["updated_at"]).total_seconds() for found in rows[:9]]
    assert low <= min(waits)
    assert max(waits) <= high


def test_requeues_bring_a_job_no_closer_to_death(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET attempts = 7, requeues = 7"))
    queue = make_queue(engine, max_attempts=2)
    queue.register("t", raising(ValueError("no")))

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"]) == ("dead", 9, 7)


@both
def test_each_job_has_a_context_of_its_own_made_from_the_hosts(
    engine: Engine, make_queue: MakeQueue, kind: str
) -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")
    add(engine, *(brooq.Job("t", n) for n in range(5)))
    seen: list[str] = []

    def handle(claim: brooq.Claim) -> None:
        seen.append(variable.get())
        variable.set(f"job {claim.payload}")

    variable.set("host")
    queue = make_queue(engine, workers=1)
    register(queue, "t", kind, handle)
    queue.start()

    eventually(all_settled(engine))
    assert seen == ["host"] * 5
