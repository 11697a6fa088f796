"""
One chaos run, held against the promises: what is done, once or at least once, and what is left behind.
"""

from __future__ import annotations

import pytest

from tests.chaos.run import Figures, Plan, run

#: The run is part of whichever test comes first.
pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return run(Plan(), tmp_path_factory.mktemp("chaos"))


def test_there_was_work_in_hand_for_as_long_as_workers_were_killed(figures: Figures) -> None:
    """
    Otherwise the other tests would tell nothing.
    """
    faults = figures.faults

    assert figures.plan.slots == 24
    assert faults.kills >= 20
    assert faults.kills_in_hand >= faults.kills * 0.8
    assert faults.freezes_outlived >= 3
    assert (faults.server_kills, faults.server_stops) == (1, 1)
    assert faults.seized >= faults.kills
    assert figures.outcome.requeued > faults.kills + faults.seized
    assert figures.stopped_in_hand


def test_every_job_that_was_committed_is_done(figures: Figures) -> None:
    assert figures.outcome.jobs == figures.enqueued == figures.plan.jobs == 3_000
    assert figures.outcome.not_done == 0


def test_an_effect_in_a_transaction_of_its_own_is_there_at_least_once(figures: Figures) -> None:
    assert figures.outcome.lost_outside == 0


def test_an_effect_in_the_outcomes_transaction_is_there_exactly_once(figures: Figures) -> None:
    outcome = figures.outcome

    assert (outcome.lost_inside, outcome.doubled_inside, outcome.strays) == (0, 0, 0)


def test_a_chained_job_is_there_exactly_once(figures: Figures) -> None:
    outcome = figures.outcome

    assert outcome.follow_ups == figures.plan.jobs / 5
    assert (outcome.lost_follow_ups, outcome.doubled_follow_ups) == (0, 0)


def test_no_job_leaves_a_terminal_state_or_moves_as_it_must_not(figures: Figures) -> None:
    outcome = figures.outcome

    assert (outcome.left_terminal, outcome.forbidden_moves, outcome.done_twice) == (0, 0, 0)


def test_nobody_writes_the_outcome_of_a_job_that_another_holds(figures: Figures) -> None:
    assert figures.outcome.foreign == 0


def test_no_worker_ends_a_lease_that_has_not_run_out(figures: Figures) -> None:
    assert figures.outcome.robbed == 0


def test_a_clean_stop_leaves_nothing_in_processing(figures: Figures) -> None:
    assert set(figures.codes) == {0}
    assert figures.stopped_left == 0
    assert figures.processing == 0


def test_no_worker_ends_by_itself(figures: Figures) -> None:
    assert figures.collapsed == ()


def test_nothing_deadlocks(figures: Figures) -> None:
    assert figures.deadlocks == 0


def test_nothing_is_counted_that_no_promise_is_made_of(figures: Figures) -> None:
    assert figures.broken_promises == {}
