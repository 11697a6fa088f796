"""
`HandlerOptions`: what a handler sets for itself, and how that goes with the queue's settings.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, assert_type, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.config import Config, HandlerKeywords, HandlerOptions, ResolvedOptions
from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.settings import OPTIONS, SETTINGS
from tests.refusals import BAD, SECOND, config, problems_of


def options(**settings: object) -> HandlerOptions:
    return HandlerOptions(**cast("HandlerKeywords", settings))


def test_options_of_nothing_are_those_of_the_queue() -> None:
    queue = Config(max_attempts=9, attempt_timeout="3s", max_requeues=4)

    assert HandlerOptions().resolve(queue) == ResolvedOptions(
        max_attempts=9,
        attempt_timeout=3 * SECOND,
        max_execution_timeout=300 * SECOND,
        backoff_base=SECOND,
        backoff_max=60 * SECOND,
        max_requeues=4,
        transactional=False,
        keep_result=False,
        interrupt="cooperative",
    )


def test_options_go_before_the_settings_of_the_queue() -> None:
    own = HandlerOptions(
        max_attempts=1, backoff_max="2m", max_requeues=8, transactional=True, keep_result=True, interrupt="raise"
    )

    resolved = own.resolve(Config(max_attempts=9, max_requeues=4))

    assert_type(resolved.backoff_max, timedelta)
    assert (resolved.max_attempts, resolved.backoff_max, resolved.max_requeues) == (1, 120 * SECOND, 8)
    assert (resolved.transactional, resolved.keep_result, resolved.interrupt) == (True, True, "raise")


def test_all_bad_options_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        options(lease="1s", max_attempt=3, max_attempts=True, attempt_timeout=5, keep_result=1, interrupt="kill")

    assert [problem.partition(" it")[0] for problem in refusal.value.problems] == [
        "lease: unknown option",
        "max_attempt: unknown option, did you mean max_attempts?",
        "max_attempts: True is not an int: write a whole number, such as 4",
        "attempt_timeout: 5 has no unit: write",
        "keep_result: 1 is neither True nor False",
        "interrupt: 'kill' is refused:",
    ]


@given(st.sampled_from([name for name in OPTIONS if name in SETTINGS]), st.data())
def test_an_option_is_refused_in_the_words_of_its_setting(name: str, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(BAD[name]))

    with pytest.raises(ConfigError) as refusal:
        options(**{name: value})

    assert refusal.value.problems == problems_of(**{name: value})


@pytest.mark.parametrize(
    ("own", "queue", "problem"),
    [
        (
            {"attempt_timeout": "10m"},
            {},
            "attempt_timeout: 10m is longer than max_execution_timeout, 5m (the queue's)",
        ),
        (
            {"max_execution_timeout": "2s"},
            {"attempt_timeout": "3s"},
            "attempt_timeout: 3s (the queue's) is longer than max_execution_timeout, 2s",
        ),
        ({"backoff_base": "2m"}, {}, "backoff_base: 2m is longer than backoff_max, 1m (the queue's)"),
    ],
)
def test_an_option_that_contradicts_the_queue_is_refused_and_says_whose_value_is_whose(
    own: dict[str, Any], queue: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        options(**own).resolve(config(**queue))

    assert refusal.value.problems == (f"{problem}: lower the one or raise the other",)


def test_options_that_contradict_each_other_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="attempt_timeout: 3s is longer than max_execution_timeout, 2s:"):
        HandlerOptions(attempt_timeout="3s", max_execution_timeout="2s")


def test_options_can_be_replaced_and_not_assigned() -> None:
    own = HandlerOptions(attempt_timeout="3s")

    assert dataclasses.replace(own, max_attempts=2) == HandlerOptions(attempt_timeout="3s", max_attempts=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        own.max_attempts = 3  # type: ignore[misc]
