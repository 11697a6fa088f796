from __future__ import annotations

import copy
import dataclasses
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type, cast, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq import config as module
from sqlalchemy_brooq.config import (
    MAX_DURATION,
    MAX_INTEGER,
    OPTIONS,
    SETTINGS,
    Config,
    ConfigKeywords,
    HandlerKeywords,
    HandlerOptions,
    ResolvedOptions,
    format_duration,
)
from sqlalchemy_brooq.errors import ConfigError

SECOND = timedelta(seconds=1)
TOKEN = "s3cr3t-t0k3n"  # noqa: S105 - a secret to look for
DURATIONS = [name for name, row in SETTINGS.items() if row.kind is module.DURATION]
INTEGERS = [name for name, row in SETTINGS.items() if row.kind is module.INTEGER]
ZERO_REFUSED = [name for name in DURATIONS if "longer than 0" in SETTINGS[name].rule.text]

BAD: dict[str, list[object]] = {
    **{name: [True, "4", 2.0, -1, MAX_INTEGER + 1] for name in INTEGERS},
    **{name: [30, 1.5, True, "30", "-1s", "", "1h1h", -SECOND, MAX_DURATION + SECOND] for name in DURATIONS},
    "wakeup": ["notify", "LISTEN", "", 1, None],
    "listen_address": ["8090", "127.0.0.1", ":8090", "127.0.0.1:65536", "::1:8090", "0.0.0.0:8090", 8090, None],
    "allow_public": [1, "yes", None],
    "api_token": [1, b"bytes", "line\nbreak", " space", "\udcff", "x" * 5_000],
}
BAD_TEXT: dict[str, list[str]] = {
    **{name: ["four", "2.0", "1_000", "-1", "2147483648", "9" * 5_000] for name in INTEGERS},
    **{name: ["30", "-1s", "1h1h", "36501d"] for name in DURATIONS},
    "wakeup": ["notify"],
    "listen_address": ["8090", "0.0.0.0:8090"],
    "allow_public": ["maybe", "2"],
    "api_token": ["line\nbreak"],
}


@pytest.fixture(autouse=True)
def _nothing_warned_about_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())


def config(**settings: object) -> Config:
    return Config(**cast("ConfigKeywords", settings))


def options(**settings: object) -> HandlerOptions:
    return HandlerOptions(**cast("HandlerKeywords", settings))


def problems_of(**settings: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refusal:
        config(**settings)
    return refusal.value.problems


def problems_in_env(environ: Mapping[str, str], **overrides: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refusal:
        Config.from_env(environ, **cast("ConfigKeywords", overrides))
    return refusal.value.problems


def bad_settings() -> st.SearchStrategy[dict[str, object]]:
    """
    One or more settings, each with a value that is refused.
    """
    names = st.lists(st.sampled_from(sorted(BAD)), min_size=1, unique=True)
    return names.flatmap(lambda some: st.fixed_dictionaries({name: st.sampled_from(BAD[name]) for name in some}))


# The table


def test_the_table_the_keywords_and_the_fields_name_the_same_settings() -> None:
    fields = [field.name for field in dataclasses.fields(Config) if field.name != "_derived"]

    assert list(SETTINGS) == fields == list(get_type_hints(ConfigKeywords))


def test_the_table_the_keywords_and_the_fields_name_the_same_options() -> None:
    names = [[field.name for field in dataclasses.fields(kind)] for kind in (HandlerOptions, ResolvedOptions)]

    assert [list(OPTIONS)] * 2 == names
    assert list(OPTIONS) == list(get_type_hints(HandlerKeywords))


@pytest.mark.parametrize("row", [*SETTINGS.values(), *OPTIONS.values()], ids=lambda row: row.name)
def test_every_row_has_one_line_of_help_and_a_default_that_it_accepts(row: module.Setting) -> None:
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


# Config in code


def test_a_config_of_nothing_holds_the_defaults() -> None:
    plain = Config()

    assert (plain.workers, plain.max_attempts, plain.max_requeues, plain.api_token) == (2, 5, None, None)
    assert (plain.lease, plain.reaper_period, plain.watchdog_grace) == (120 * SECOND, 30 * SECOND, 120 * SECOND)
    assert plain.retention_ttl_dead == plain.retention_ttl == timedelta(days=30)
    assert plain.retention_period == timedelta(hours=1)


def test_durations_are_given_as_text_or_timedelta_and_read_as_timedelta() -> None:
    given_both_ways = Config(lease="30s", shutdown_grace=timedelta(seconds=3), retention_ttl=0)

    assert_type(given_both_ways.lease, timedelta)
    assert given_both_ways.lease == 30 * SECOND
    assert given_both_ways.shutdown_grace == 3 * SECOND
    assert given_both_ways.retention_ttl == timedelta(0)


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


def test_a_setting_can_not_be_assigned() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().workers = 3  # type: ignore[misc]


# Derived defaults


def test_the_reaper_goes_by_the_lease() -> None:
    assert Config(lease="30s").reaper_period == timedelta(seconds=7.5)
    assert Config(lease="4s").reaper_period == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("settings", "period"),
    [
        ({"retention_ttl": "1d"}, timedelta(minutes=14, seconds=24)),
        ({"retention_ttl": "5m"}, timedelta(minutes=1)),
        ({"retention_ttl": "365d"}, timedelta(hours=1)),
        ({"retention_ttl": "0"}, timedelta(minutes=1)),
        ({"retention_ttl_done": "10h"}, timedelta(minutes=6)),
        ({"retention_ttl_done": "0"}, timedelta(hours=1)),
        ({"retention_ttl": "0", "retention_ttl_dead": "10h"}, timedelta(minutes=6)),
        ({"retention_ttl": "1d", "retention_period": "0"}, timedelta(minutes=14, seconds=24)),
        ({"retention_period": "3s"}, 3 * SECOND),
    ],
)
def test_retention_goes_by_the_shortest_ttl_in_force(settings: dict[str, object], period: timedelta) -> None:
    assert config(**settings).retention_period == period


def test_a_state_may_have_a_ttl_of_its_own() -> None:
    own = Config(retention_ttl="1d", retention_ttl_done="0", retention_ttl_dead="90d")

    assert own.retention_ttl_done == timedelta(0)
    assert own.retention_ttl_dead == timedelta(days=90)
    assert own.retention_ttl_canceled == timedelta(days=1)


def test_replace_keeps_what_it_is_not_told_to_change() -> None:
    before = Config(lease="30s", api_token=TOKEN, retention_ttl_done="1d")

    after = dataclasses.replace(before, workers=3)

    assert after == Config(workers=3, lease="30s", api_token=TOKEN, retention_ttl_done="1d")


def test_replace_derives_anew_what_was_never_given() -> None:
    after = dataclasses.replace(
        dataclasses.replace(Config(watchdog_grace="9s"), workers=3),
        lease=timedelta(minutes=1),
        retention_ttl=timedelta(days=1),
    )

    assert after == Config(workers=3, watchdog_grace="9s", lease="1m", retention_ttl="1d")
    assert after.reaper_period == timedelta(seconds=15)


def test_replace_can_pin_a_value_that_was_derived() -> None:
    before = Config(lease="2m")

    after = dataclasses.replace(before, lease=timedelta(hours=1), watchdog_grace=before.watchdog_grace)
    later = dataclasses.replace(after, lease=timedelta(minutes=3))

    assert after.watchdog_grace == later.watchdog_grace == timedelta(minutes=2)
    assert later.reaper_period == timedelta(seconds=45)


def test_replace_can_let_a_pinned_value_go() -> None:
    after = dataclasses.replace(Config(lease="1m", retention_period="9s"), retention_period=timedelta(0))

    assert after == Config(lease="1m")


def test_replace_validates() -> None:
    with pytest.raises(ConfigError, match="workers: 0 is refused"):
        dataclasses.replace(Config(), workers=0)


def test_a_copy_still_knows_what_was_derived() -> None:
    for twin in (copy.deepcopy(Config(lease="1m")), pickle.loads(pickle.dumps(Config(lease="1m")))):  # noqa: S301 - our own
        assert twin == Config(lease="1m")
        assert dataclasses.replace(twin, lease=timedelta(minutes=4)).reaper_period == timedelta(minutes=1)


def test_equal_settings_are_equal_and_hash_alike() -> None:
    assert {Config(lease="60s"), Config(lease="1m"), Config(lease="1m", reaper_period="15s")} == {Config(lease="1m")}


# Addresses


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("127.0.0.1:8090", ("127.0.0.1", 8090)),
        ("127.8.8.8:0", ("127.8.8.8", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:8090", ("::1", 8090)),
        ("off", None),
    ],
)
def test_a_loopback_address_is_listened_on(address: str, listen: tuple[str, int] | None) -> None:
    assert Config(listen_address=address).listen == listen


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


# Secrets


def test_the_token_is_not_shown() -> None:
    shown = repr(Config(api_token=TOKEN, lease="90s", workers=3))

    assert TOKEN not in shown
    assert shown.startswith("Config(workers=3, prefetch=0, poll_interval='1s', ")
    assert "lease='1m30s'" in shown
    assert shown.endswith("allow_public=False, api_token='***')")


def test_a_refused_token_is_not_shown_either(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n\n")

    problems = [
        *problems_of(api_token=f"{TOKEN}\n"),
        *problems_of(api_token=TOKEN.encode()),
        *problems_of(api_tokn=TOKEN),
        *problems_in_env({"QUEUE_API_TOKEN": f" {TOKEN}"}),
        *problems_in_env({"QUEUE_API_TOKEN": TOKEN, "QUEUE_API_TOKEN_FILE": str(file)}),
        *problems_in_env({"QUEUE_API_TOKEN_FILE": str(file)}),
    ]

    assert len(problems) == 6
    assert TOKEN not in "".join(problems)


def test_an_empty_token_is_none() -> None:
    assert Config(api_token="").api_token is None


# The environment


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Config.from_env({}) == Config()


def test_every_setting_is_read_from_its_variable() -> None:
    environ = {
        "QUEUE_WORKERS": "4",
        "QUEUE_PREFETCH": " 8 ",
        "QUEUE_POLL_INTERVAL": "500ms",
        "QUEUE_WAKEUP": "poll",
        "QUEUE_LEASE": "30s",
        "QUEUE_ATTEMPT_TIMEOUT": "20s",
        "QUEUE_MAX_EXECUTION_TIMEOUT": "40s",
        "QUEUE_BACKOFF_BASE": "2s",
        "QUEUE_BACKOFF_MAX": "2m",
        "QUEUE_MAX_ATTEMPTS": "7",
        "QUEUE_MAX_REQUEUES": "3",
        "QUEUE_REAPER_PERIOD": "1s",
        "QUEUE_WATCHDOG_GRACE": "9s",
        "QUEUE_SHUTDOWN_GRACE": "0",
        "QUEUE_RETENTION_TTL": "1h30m",
        "QUEUE_RETENTION_TTL_DONE": "1h",
        "QUEUE_RETENTION_TTL_DEAD": "0",
        "QUEUE_RETENTION_TTL_CANCELED": "2d",
        "QUEUE_RETENTION_BATCH": "10",
        "QUEUE_RETENTION_PERIOD": "9s",
        "QUEUE_LISTEN_ADDRESS": "0.0.0.0:80",
        "QUEUE_ALLOW_PUBLIC": "1",
        "QUEUE_API_TOKEN": TOKEN,
    }

    found = Config.from_env(environ)

    assert set(environ) == {row.variable for row in SETTINGS.values()}
    assert found == Config(
        workers=4,
        prefetch=8,
        poll_interval="500ms",
        wakeup="poll",
        lease="30s",
        attempt_timeout="20s",
        max_execution_timeout="40s",
        backoff_base="2s",
        backoff_max="2m",
        max_attempts=7,
        max_requeues=3,
        reaper_period="1s",
        watchdog_grace="9s",
        shutdown_grace="0",
        retention_ttl="1h30m",
        retention_ttl_done="1h",
        retention_ttl_dead="0",
        retention_ttl_canceled="2d",
        retention_batch=10,
        retention_period="9s",
        listen_address="0.0.0.0:80",
        allow_public=True,
        api_token=TOKEN,
    )


@pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_counts_as_unset(row: module.Setting, text: str) -> None:
    assert Config.from_env({row.variable: text, "QUEUE_API_TOKEN_FILE": text}) == Config()


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in BAD_TEXT for text in BAD_TEXT[name]])
def test_one_bad_variable_is_one_problem_that_names_it(name: str, text: str) -> None:
    (problem,) = problems_in_env({f"QUEUE_{name.upper()}": text})

    assert problem.startswith(f"QUEUE_{name.upper()}: ")


@given(st.lists(st.sampled_from(sorted(BAD_TEXT)), min_size=1, unique=True))
def test_all_bad_variables_are_reported_at_once(names: list[str]) -> None:
    problems = problems_in_env({f"QUEUE_{name.upper()}": BAD_TEXT[name][0] for name in names})

    variables = [row.variable for name, row in SETTINGS.items() if name in names]
    assert [problem.partition(":")[0] for problem in problems] == variables


def test_a_contradiction_names_the_variables() -> None:
    (problem,) = problems_in_env({"QUEUE_ATTEMPT_TIMEOUT": "10m"})

    assert problem == (
        "QUEUE_ATTEMPT_TIMEOUT: 10m is longer than QUEUE_MAX_EXECUTION_TIMEOUT, 5m (the default):"
        " lower the one or raise the other"
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [(text, True) for text in ("1", "true", "yes", "on", "TRUE")]
    + [(text, False) for text in ("0", "false", "no", "off")],
)
def test_a_flag_is_said_in_several_ways(text: str, *, meant: bool) -> None:
    assert Config.from_env({"QUEUE_ALLOW_PUBLIC": text}).allow_public is meant


@pytest.mark.parametrize("name", ["max_requeues", "retention_ttl_done", "reaper_period", "watchdog_grace"])
def test_none_in_a_variable_asks_for_no_value_of_its_own(name: str) -> None:
    assert Config.from_env({f"QUEUE_{name.upper()}": "none"}) == Config()


def test_none_is_no_value_where_one_is_needed() -> None:
    assert problems_in_env({"QUEUE_WORKERS": "none"}) == (
        "QUEUE_WORKERS: 'none' is not a whole number: write digits, such as 4",
    )


def test_an_override_goes_before_its_variable() -> None:
    environ = {"QUEUE_WORKERS": "nonsense", "QUEUE_LEASE": "30s", "QUEUE_API_TOKEN_FILE": "/nowhere"}

    assert Config.from_env(environ, workers=3, api_token=TOKEN) == Config(workers=3, lease="30s", api_token=TOKEN)


def test_overrides_and_variables_are_refused_together() -> None:
    problems = problems_in_env({"QUEUE_LEASE": "30"}, workers=0, worker=1)

    assert [problem.partition(":")[0] for problem in problems] == ["worker", "workers", "QUEUE_LEASE"]


def test_a_config_of_the_environment_derives_like_any_other() -> None:
    found = Config.from_env({"QUEUE_LEASE": "1m", "QUEUE_WATCHDOG_GRACE": "9s"})

    after = dataclasses.replace(found, lease=timedelta(minutes=2))

    assert after == Config(watchdog_grace="9s")


@given(st.sampled_from(DURATIONS), st.timedeltas(min_value=timedelta(minutes=1), max_value=timedelta(minutes=5)))
def test_a_formatted_duration_in_a_variable_is_the_same_setting(name: str, duration: timedelta) -> None:
    wide = {"max_execution_timeout": "5m", "backoff_max": "5m", name: format_duration(duration)}
    if name in ("max_execution_timeout", "backoff_max"):
        wide |= {"attempt_timeout": "1m", "backoff_base": "1m"}

    found = Config.from_env({f"QUEUE_{key.upper()}": text for key, text in wide.items()})

    assert getattr(found, name) == duration


def test_the_process_environment_is_read_when_asked_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE_WORKERS", "9")

    assert Config().workers == 2
    assert Config.from_env().workers == 9


def test_importing_the_module_reads_no_variable() -> None:
    nonsense = {row.variable: "nonsense" for row in SETTINGS.values()} | {"QUEUE_STRANGER": "1"}
    code = "from sqlalchemy_brooq.config import Config; print(Config().workers)"

    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | nonsense, capture_output=True, text=True, check=True
    )

    assert (run.stdout, run.stderr) == ("2\n", "")


# Unknown variables


def test_an_unknown_variable_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"QUEUE_WORKER": "3", "QUEUE_SERVICE_HOST": "10.0.0.1", "QUEUE_NOTHING": "", "OTHER": "1"}

    for _ in range(2):
        assert Config.from_env(environ) == Config()

    assert caplog.record_tuples == [
        ("sqlalchemy_brooq.config", logging.WARNING, f"{name}: unknown setting, it has no effect{hint}")
        for name, hint in (("QUEUE_SERVICE_HOST", ""), ("QUEUE_WORKER", ", did you mean QUEUE_WORKERS?"))
    ]


def test_an_unknown_variable_is_warned_about_also_where_settings_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    problems_in_env({"QUEUE_LEAS": TOKEN, "QUEUE_WORKERS": "0"})

    assert caplog.messages == ["QUEUE_LEAS: unknown setting, it has no effect, did you mean QUEUE_LEASE?"]


# The token's file


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n"])
def test_the_token_may_stand_in_a_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content.encode())

    assert Config.from_env({"QUEUE_API_TOKEN_FILE": str(file)}).api_token == TOKEN


def test_a_file_that_can_not_be_read_is_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    assert problems_in_env({"QUEUE_API_TOKEN_FILE": str(missing), "QUEUE_WORKERS": "0"}) == (
        f"QUEUE_API_TOKEN_FILE: '{missing}' can't be read: No such file or directory",
        "QUEUE_WORKERS: 0 is refused: it must be 1 or more",
    )
    assert "Is a directory" in problems_in_env({"QUEUE_API_TOKEN_FILE": str(tmp_path)})[0]
    assert "null byte" in problems_in_env({"QUEUE_API_TOKEN_FILE": "\0"})[0]


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"", "is empty"), (b"\n", "is empty"), (b"\xff\xfe", "unprintable"), (b"x" * 100_000, "longer than 4096")],
)
def test_a_file_without_a_usable_token_is_a_problem(tmp_path: Path, content: bytes, fault: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    (problem,) = problems_in_env({"QUEUE_API_TOKEN_FILE": str(file)})

    assert problem.startswith("QUEUE_API_TOKEN_FILE: ")
    assert fault in problem


def test_a_device_is_not_read_to_its_end() -> None:
    (problem,) = problems_in_env({"QUEUE_API_TOKEN_FILE": "/dev/zero"})

    assert "longer than 4096" in problem


def test_a_token_given_twice_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)

    assert problems_in_env({"QUEUE_API_TOKEN": "other", "QUEUE_API_TOKEN_FILE": str(file)}) == (
        "QUEUE_API_TOKEN_FILE: QUEUE_API_TOKEN is set as well: keep one of the two",
    )


# HandlerOptions


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
