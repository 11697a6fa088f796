from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, MOVES, TERMINAL, Event, JobState, Label, Outcome


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
