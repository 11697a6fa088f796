from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.vocabulary import (
    CHANNEL,
    CLAIMABLE,
    HELD,
    MAX_ERROR,
    MAX_NAME,
    MOVES,
    PRIORITIES,
    REPLAY_KEY,
    SUCCESS,
    TERMINAL,
    Event,
    JobEvent,
    JobState,
    Label,
    Notice,
    Outcome,
)


@given(st.sampled_from(Event))
def test_no_event_leaves_a_terminal_state(event: Event) -> None:
    leaves, _ = MOVES[event]

    assert not leaves & TERMINAL


@given(st.lists(st.sampled_from(Event)))
def test_a_job_that_ended_stays_as_it_is_whatever_happens(events: list[Event]) -> None:
    state, ended = JobState.PENDING, None
    for event in events:
        leaves, enters = MOVES[event]
        if state in leaves:
            state = enters
        if ended is None and state in TERMINAL:
            ended = state

    assert ended is None or state is ended


def test_every_state_is_of_one_kind() -> None:
    assert set(JobState) == CLAIMABLE | HELD | TERMINAL
    assert not CLAIMABLE & HELD
    assert not TERMINAL & (CLAIMABLE | HELD)


def test_every_state_but_the_first_can_be_reached() -> None:
    assert {enters for _, enters in MOVES.values()} == set(JobState)


@given(st.sampled_from(Event))
def test_an_outcome_enters_the_state_of_its_event(event: Event) -> None:
    assert Outcome(event).state is MOVES[event][1]


def test_a_refunded_failure_is_counted_as_preserved() -> None:
    assert Outcome(Event.FAILED, refund=True).label is Label.PRESERVED
    assert Outcome(Event.FAILED).label is Label.FAILED
    assert Outcome(Event.REQUEUED, refund=True).label is Label.REQUEUED


def test_the_words_are_those_that_rows_logs_and_dashboards_have() -> None:
    assert [*JobState] == ["pending", "processing", "failed", "done", "dead", "canceled"]
    assert [*Event] == ["JobClaimed", "JobDone", "JobFailed", "JobDead", "JobCanceled", "JobRequeued"]
    assert [*Label] == ["done", "failed", "dead", "canceled", "preserved", "requeued", "lost"]
    assert (REPLAY_KEY, CHANNEL) == ("replay:", "brooq")
    assert all(notice == notice.name.title().replace("_", "") for notice in Notice)


def test_the_limits_are_those_of_the_schema() -> None:
    assert ([*PRIORITIES], MAX_NAME, MAX_ERROR) == ([-2, -1, 0, 1, 2], 255, 4_000)


@pytest.mark.parametrize(
    ("event", "leaves", "enters"),
    [
        (Event.CLAIMED, CLAIMABLE, JobState.PROCESSING),
        (Event.DONE, HELD, JobState.DONE),
        (Event.FAILED, HELD, JobState.FAILED),
        (Event.DEAD, HELD, JobState.DEAD),
        (Event.CANCELED, CLAIMABLE | HELD, JobState.CANCELED),
        (Event.REQUEUED, HELD, JobState.PENDING),
    ],
)
def test_the_moves_are_those_that_the_docs_draw(event: Event, leaves: frozenset[JobState], enters: JobState) -> None:
    assert MOVES[event] == (leaves, enters)


def test_what_can_be_claimed_is_what_waits() -> None:
    assert {JobState.PENDING, JobState.FAILED} == CLAIMABLE
    assert {JobState.PROCESSING} == HELD
    assert {JobState.DONE, JobState.DEAD, JobState.CANCELED} == TERMINAL


def test_an_outcome_writes_nothing_that_it_was_not_told() -> None:
    assert Outcome(Event.DONE) == SUCCESS
    assert (SUCCESS.delay, SUCCESS.refund, SUCCESS.error, SUCCESS.result) == (timedelta(0), False, None, None)
    assert JobEvent(Event.DONE, UUID(int=1), "t", 1).error is None
