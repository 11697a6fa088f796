from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import policy
from sqlalchemy_brooq.vocabulary import MAX_ERROR, Event, Outcome


@dataclass(frozen=True)
class Rules:
    max_attempts: int = 3
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_max: timedelta = timedelta(minutes=1)
    on_invalid: str = "retry"


numbers = st.integers(min_value=1, max_value=2**31 - 1)
durations = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=36_500))
fractions = st.floats(min_value=0, max_value=1, exclude_max=True)


@given(numbers, durations, durations, fractions)
def test_backoff_stays_within_its_bounds_for_any_attempt(
    attempt: int, one: timedelta, other: timedelta, fraction: float
) -> None:
    base, cap = sorted((one, other))

    pause = policy.backoff(attempt, base, cap, rng=lambda: fraction)

    full = min(base.total_seconds() * 2.0 ** min(attempt - 1, 1000), cap.total_seconds())
    assert full / 2 - 1e-6 <= pause.total_seconds() <= full + 1e-6


def test_backoff_doubles_until_the_cap() -> None:
    pauses = [policy.backoff(n, timedelta(seconds=1), timedelta(seconds=5), rng=lambda: 0.0) for n in range(1, 6)]

    assert [pause.total_seconds() for pause in pauses] == [0.5, 1.0, 2.0, 2.5, 2.5]


@pytest.mark.parametrize(("fraction", "seconds"), [(0.0, 2.0), (0.25, 2.5), (0.75, 3.5)])
def test_the_jitter_is_spread_over_the_upper_half_of_the_pause(fraction: float, seconds: float) -> None:
    pause = policy.backoff(1, timedelta(seconds=4), timedelta(minutes=1), rng=lambda: fraction)

    assert pause == timedelta(seconds=seconds)


def test_backoff_is_jittered() -> None:
    pauses = {policy.backoff(1, timedelta(seconds=5), timedelta(seconds=60)) for _ in range(200)}

    assert len(pauses) > 100
    assert min(pauses) >= timedelta(seconds=2.5)
    assert max(pauses) <= timedelta(seconds=5)


@given(numbers, st.integers(min_value=0, max_value=100), st.integers(min_value=1, max_value=1000))
def test_a_failure_is_final_exactly_when_attempts_without_requeues_reach_the_limit(
    attempts: int, requeues: int, limit: int
) -> None:
    outcome = policy.decide(attempts, requeues, Rules(max_attempts=limit), ValueError("no"))

    assert outcome is not None
    assert (outcome.event is Event.DEAD) == (attempts - requeues >= limit)
    assert outcome.error == "ValueError: no"


@given(numbers, st.integers(min_value=0, max_value=100))
def test_a_return_is_success_whatever_the_count(attempts: int, requeues: int) -> None:
    outcome = policy.decide(attempts, requeues, Rules(), None)

    assert outcome is not None
    assert outcome.event is Event.DONE


@given(numbers)
def test_a_preserved_attempt_never_kills(attempts: int) -> None:
    outcome = policy.decide(attempts, 0, Rules(max_attempts=1), brooq.PreserveAttempt("later"))

    assert outcome is not None
    assert (outcome.event, outcome.refund) == (Event.FAILED, True)


@pytest.mark.parametrize(("attempts", "requeues", "full"), [(1, 0, 1), (3, 0, 4), (3, 2, 1), (5, 2, 4), (9, 0, 60)])
def test_a_preserved_attempt_waits_as_a_failure_does_without_what_a_lease_ended(
    attempts: int, requeues: int, full: int
) -> None:
    outcome = policy.decide(attempts, requeues, Rules(), brooq.PreserveAttempt("the shop is closed"))

    assert outcome is not None
    assert timedelta(seconds=full) / 2 <= outcome.delay <= timedelta(seconds=full)
    assert outcome.error == "PreserveAttempt: the shop is closed"


def test_a_canceled_job_says_why() -> None:
    outcome = policy.decide(1, 0, Rules(), brooq.CancelJob("the order was withdrawn"))

    assert outcome == Outcome(Event.CANCELED, error="CancelJob: the order was withdrawn")


def test_retry_later_is_clamped_and_dies_on_the_last_attempt() -> None:
    signal = brooq.RetryLater(timedelta(hours=1))

    first, last = policy.decide(1, 0, Rules(), signal), policy.decide(3, 0, Rules(), signal)

    assert first is not None
    assert first.delay == timedelta(minutes=1)
    assert last is not None
    assert last.event is Event.DEAD


def chained(signal: BaseException) -> BaseException:
    error = ValueError("outer")
    error.__cause__ = signal
    return error


@pytest.mark.parametrize("wrap", [lambda s: s, chained, lambda s: ExceptionGroup("many", [ValueError("x"), s])])
def test_signals_are_found_through_causes_and_groups(wrap: object) -> None:
    assert callable(wrap)
    canceled = policy.decide(1, 0, Rules(), wrap(brooq.CancelJob("off")))
    assert canceled is not None
    assert canceled.event is Event.CANCELED
    assert brooq.delay_of(wrap(brooq.RetryLater(timedelta(seconds=3)))) == timedelta(seconds=3)


def test_an_exception_that_causes_itself_is_read_once() -> None:
    error = ValueError("round")
    error.__cause__ = error

    assert brooq.delay_of(error) is None


@pytest.mark.parametrize(
    ("cause", "event"),
    [
        (brooq.AttemptTimeout("t"), Event.FAILED),
        (brooq.MaxExecutionExceeded("m"), Event.FAILED),
        (brooq.Shutdown("s"), Event.REQUEUED),
    ],
)
def test_a_cause_decides_when_the_handler_ends_with_it(cause: brooq.Interruption, event: Event) -> None:
    for error in (cause, asyncio.CancelledError()):
        outcome = policy.decide(1, 0, Rules(), error, cause)
        assert outcome is not None
        assert outcome.event is event


def test_a_shutdown_gives_the_charge_back_and_records_no_error() -> None:
    cause = brooq.Shutdown("s")

    assert policy.decide(1, 0, Rules(), cause, cause) == Outcome(Event.REQUEUED, refund=True)


def test_a_group_obeys_only_if_all_of_it_does() -> None:
    cause = brooq.Shutdown("s")
    obedient = BaseExceptionGroup("all", [cause, asyncio.CancelledError()])
    mixed = BaseExceptionGroup("some", [cause, ValueError("own")])

    obeyed, failed = policy.decide(1, 0, Rules(), obedient, cause), policy.decide(1, 0, Rules(), mixed, cause)

    assert obeyed is not None
    assert obeyed.event is Event.REQUEUED
    assert failed is not None
    assert failed.event is Event.FAILED


def test_a_lost_lease_writes_nothing() -> None:
    cause = brooq.LeaseLost("gone")

    assert policy.decide(1, 0, Rules(), cause, cause) is None


def test_another_exception_after_an_interruption_is_an_ordinary_failure() -> None:
    outcome = policy.decide(1, 0, Rules(), ValueError("own"), brooq.Shutdown("s"))

    assert outcome is not None
    assert (outcome.event, outcome.error) == (Event.FAILED, "ValueError: own")


def test_an_own_cancellation_is_an_ordinary_failure() -> None:
    outcome = policy.decide(1, 0, Rules(), asyncio.CancelledError())

    assert outcome is not None
    assert (outcome.event, outcome.error) == (Event.FAILED, "CancelledError")


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def test_a_failure_text_can_always_be_stored() -> None:
    assert policy.error_text(Hostile()) == "Hostile: (its __str__ raised RuntimeError)"
    assert len(policy.error_text(ValueError("x" * 10_000))) == MAX_ERROR
    assert policy.error_text(ValueError("a\x00b")) == "ValueError: a\N{REPLACEMENT CHARACTER}b"
    policy.error_text(ValueError("\ud800")).encode()


class Diagnosed(Exception):
    def __init__(self, primary: str | None) -> None:
        super().__init__("duplicate key\nDETAIL:  Key (card)=(4111) already exists.")
        self.diag = SimpleNamespace(message_primary=primary)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Diagnosed("duplicate key"), "Diagnosed: duplicate key"),
        (DBAPIError("INSERT", {"card": "4111"}, Diagnosed("duplicate key")), "DBAPIError: duplicate key"),
        (DBAPIError("INSERT", {"card": "4111"}, Diagnosed(None)), "DBAPIError: Diagnosed: duplicate key"),
        (PendingRollbackError("rolled back. Original exception was: (4111)"), "PendingRollbackError: rolled back."),
    ],
)
def test_of_a_database_error_no_value_is_kept(error: Exception, text: str) -> None:
    assert policy.error_text(error) == text


@given(st.text(st.characters()))
def test_any_message_becomes_storable(text: str) -> None:
    stored = policy.storable(text)

    stored.encode()
    assert "\x00" not in stored
    assert len(stored) <= MAX_ERROR


@given(numbers, st.integers(min_value=0, max_value=100))
def test_an_invalid_payload_is_the_last_failure_only_where_the_handler_says_so(attempts: int, requeues: int) -> None:
    error = brooq.InvalidPayload("number: missing", "total: missing")
    limit = 2**31

    retried = policy.decide(attempts, requeues, Rules(max_attempts=limit), error)
    ended = policy.decide(attempts, requeues, Rules(max_attempts=limit, on_invalid="dead"), error)

    assert error.problems == ("number: missing", "total: missing")
    assert (retried.event, ended.event) == (Event.FAILED, Event.DEAD)  # type: ignore[union-attr]
    assert ended.error == "InvalidPayload: number: missing; total: missing"  # type: ignore[union-attr]
    other = policy.decide(attempts, requeues, Rules(max_attempts=limit, on_invalid="dead"), ValueError("no"))
    assert other is not None
    assert other.event is Event.FAILED


@pytest.mark.parametrize(
    "signal", [brooq.CancelJob(), brooq.PreserveAttempt(), brooq.RetryLater(timedelta(0))], ids=repr
)
def test_a_signal_goes_before_an_invalid_payload(signal: brooq.Signal) -> None:
    error = brooq.InvalidPayload("number: missing")
    error.__cause__ = signal

    outcome = policy.decide(1, 0, Rules(on_invalid="dead"), error)

    assert outcome is not None
    assert outcome.event is not Event.DEAD


def test_a_delay_may_be_text_with_a_unit() -> None:
    assert brooq.RetryLater("1m30s").delay == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("delay", "error"),
    [
        (5, "RetryLater takes a timedelta, or text such as '30s', not int 5"),
        (None, "RetryLater takes a timedelta, or text such as '30s', not NoneType None"),
    ],
)
def test_a_delay_that_is_neither_text_nor_timedelta_is_refused(delay: Any, error: str) -> None:
    with pytest.raises(TypeError) as caught:
        brooq.RetryLater(delay)

    assert str(caught.value) == error


@pytest.mark.parametrize("delay", [timedelta(seconds=-1), "5", "soon", "-1s"], ids=str)
def test_a_delay_that_is_no_duration_is_refused(delay: timedelta | str) -> None:
    with pytest.raises(ValueError, match=r"has|negative|unit|duration|write it"):
        brooq.RetryLater(delay)


def test_a_type_that_two_layers_share_is_named_once() -> None:
    drivers = type("OperationalError", (Exception,), {})
    refused = OperationalError("SELECT 1", {}, drivers("connection refused\nis it running?"))

    assert policy.error_text(refused) == "OperationalError: connection refused"
