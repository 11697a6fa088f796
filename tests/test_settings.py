"""
The table of settings, and the rules that it holds values to.
"""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.config import Config, ConfigKeywords, HandlerKeywords, HandlerOptions, ResolvedOptions
from sqlalchemy_brooq.kinds import MAX_DURATION
from sqlalchemy_brooq.settings import OPTIONS, SETTINGS, Setting
from tests.refusals import BAD, DURATIONS, config, problems_of

TOKEN = "s3cr3t-t0k3n"  # noqa: S105 - a secret to look for
ZERO_REFUSED = [name for name in DURATIONS if "longer than 0" in SETTINGS[name].rule.text]


def bad_settings() -> st.SearchStrategy[dict[str, object]]:
    """
    One or more settings, each with a value that is refused.
    """
    names = st.lists(st.sampled_from(sorted(BAD)), min_size=1, unique=True)
    return names.flatmap(lambda some: st.fixed_dictionaries({name: st.sampled_from(BAD[name]) for name in some}))


# -- the table


def test_the_table_the_keywords_and_the_fields_name_the_same_settings() -> None:
    fields = [field.name for field in dataclasses.fields(Config) if field.name != "_derived"]

    assert list(SETTINGS) == fields == list(get_type_hints(ConfigKeywords))


def test_the_table_the_keywords_and_the_fields_name_the_same_options() -> None:
    names = [[field.name for field in dataclasses.fields(kind)] for kind in (HandlerOptions, ResolvedOptions)]

    assert [list(OPTIONS)] * 2 == names
    assert list(OPTIONS) == list(get_type_hints(HandlerKeywords))


@pytest.mark.parametrize("row", [*SETTINGS.values(), *OPTIONS.values()], ids=lambda row: row.name)
def test_every_row_has_one_line_of_help_and_a_default_that_it_accepts(row: Setting) -> None:
    assert row.help.endswith(".")
    assert "\n" not in row.help
    row.accept(row.default)


def test_the_defaults_are_the_documented_ones() -> None:
    assert {name: row.default_text for name, row in SETTINGS.items()} == {
        "workers": "2",
        "prefetch": "0",
        "poll_interval": "1s",
        "wakeup": "listen",
        "lease": "2m",
        "attempt_timeout": "1m",
        "max_execution_timeout": "5m",
        "backoff_base": "1s",
        "backoff_max": "1m",
        "max_attempts": "5",
        "max_requeues": "none",
        "reaper_period": "max(5s, lease/4)",
        "watchdog_grace": "lease",
        "shutdown_grace": "30s",
        "retention_ttl": "30d",
        "retention_ttl_done": "retention_ttl",
        "retention_ttl_dead": "retention_ttl",
        "retention_ttl_canceled": "retention_ttl",
        "retention_batch": "1000",
        "retention_period": "0 = min(max(ttl/100, 1m), 1h)",
        "listen_address": "127.0.0.1:8090",
        "allow_public": "False",
        "api_token": "none",
    }


# -- values


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_one_bad_value_is_one_problem_that_names_it(name: str, value: object) -> None:
    (problem,) = problems_of(**{name: value})

    assert problem.startswith(f"{name}: ")


@given(bad_settings())
def test_all_bad_values_are_reported_at_once(settings: dict[str, object]) -> None:
    problems = problems_of(**settings)

    assert sorted(problem.partition(":")[0] for problem in problems) == sorted(settings)


@pytest.mark.parametrize("name", ZERO_REFUSED)
def test_a_duration_that_must_pass_is_not_zero(name: str) -> None:
    assert problems_of(**{name: "0"}) == (f"{name}: '0' is refused: it must be longer than 0",)


@pytest.mark.parametrize(("name", "value"), [("workers", 0), ("max_attempts", 0), ("max_requeues", 0)])
def test_a_count_that_must_be_one_is_not_zero(name: str, value: int) -> None:
    assert problems_of(**{name: value}) == (f"{name}: 0 is refused: it must be 1 or more",)


def test_an_integer_too_long_to_write_is_a_problem_and_no_traceback() -> None:
    assert problems_of(workers=10**5_000) == ("workers: int too long to show is out of range: at most 2147483647",)


@pytest.mark.parametrize("name", DURATIONS)
def test_the_longest_duration_is_one_that_threads_and_datetimes_hold(name: str) -> None:
    long = {"max_execution_timeout": MAX_DURATION, "backoff_max": MAX_DURATION, name: MAX_DURATION}

    assert getattr(config(**long), name) == MAX_DURATION


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"attempt_timeout": "10m"},
            "attempt_timeout: 10m is longer than max_execution_timeout, 5m (the default)",
        ),
        (
            {"max_execution_timeout": "30s"},
            "attempt_timeout: 1m (the default) is longer than max_execution_timeout, 30s",
        ),
        ({"backoff_base": "2m", "backoff_max": "90s"}, "backoff_base: 2m is longer than backoff_max, 1m30s"),
    ],
)
def test_two_settings_that_contradict_each_other_are_refused(settings: dict[str, object], problem: str) -> None:
    (found,) = problems_of(**settings)

    assert found == f"{problem}: lower the one or raise the other"


def test_a_bad_value_is_not_compared_with_another() -> None:
    assert len(problems_of(attempt_timeout="soon", max_execution_timeout="1s")) == 1


def test_an_unknown_keyword_is_refused_by_name_beside_the_other_problems() -> None:
    problems = problems_of(worker=3, entirely_else=1, lease=30)

    assert problems[0] == "worker: unknown setting, did you mean workers?"
    assert problems[1] == "entirely_else: unknown setting"
    assert problems[2].startswith("lease: 30 has no unit")


def test_a_refused_token_is_not_shown() -> None:
    problems = [
        *problems_of(api_token=f"{TOKEN}\n"),
        *problems_of(api_token=TOKEN.encode()),
        *problems_of(api_tokn=TOKEN),
    ]

    assert len(problems) == 3
    assert TOKEN not in "".join(problems)


# -- addresses


@pytest.mark.parametrize("address", ["0.0.0.0:8090", "[::]:8090", "10.0.0.1:80", "example.org:80", "127.1:80"])
def test_an_address_that_others_can_reach_takes_leave(address: str) -> None:
    (problem,) = problems_of(listen_address=address)

    assert problem == (
        f"listen_address: '{address}' is not a loopback address, so other hosts could reach it:"
        " use 127.0.0.1, or allow it with allow_public"
    )
    assert Config(listen_address=address, allow_public=True).listen_address == address


@pytest.mark.parametrize("address", ["", "8090", ":8090", "127.0.0.1:", "127.0.0.1:http", "::1:80", "[127.0.0.1]:80"])
def test_an_address_is_host_and_port_also_where_it_may_be_public(address: str) -> None:
    (problem,) = problems_of(listen_address=address, allow_public=True)

    assert problem.startswith(f"listen_address: '{address}' is not host:port: write '127.0.0.1:8090'")
