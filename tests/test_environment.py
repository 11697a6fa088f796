"""
Settings from the ``QUEUE_*`` variables: how each is read, and what is said about those that can't be.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq import environment
from sqlalchemy_brooq.config import Config, ConfigKeywords
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.settings import SETTINGS, Setting
from tests.refusals import DURATIONS, INTEGERS

TOKEN = "s3cr3t-t0k3n"  # noqa: S105 - a secret to look for

#: name of a setting -> texts that are refused in its variable
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
    monkeypatch.setattr(environment, "_warned", set())


def problems_in_env(environ: Mapping[str, str], **overrides: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refusal:
        Config.from_env(environ, **cast("ConfigKeywords", overrides))
    return refusal.value.problems


# -- variables


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
def test_an_empty_variable_counts_as_unset(row: Setting, text: str) -> None:
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


# -- unknown variables


def test_an_unknown_variable_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"QUEUE_WORKER": "3", "QUEUE_SERVICE_HOST": "10.0.0.1", "QUEUE_NOTHING": "", "OTHER": "1"}

    for _ in range(2):
        assert Config.from_env(environ) == Config()

    assert caplog.record_tuples == [
        ("sqlalchemy_brooq.environment", logging.WARNING, f"{name}: unknown setting, it has no effect{hint}")
        for name, hint in (("QUEUE_SERVICE_HOST", ""), ("QUEUE_WORKER", ", did you mean QUEUE_WORKERS?"))
    ]


def test_an_unknown_variable_is_warned_about_also_where_settings_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    problems_in_env({"QUEUE_LEAS": TOKEN, "QUEUE_WORKERS": "0"})

    assert caplog.messages == ["QUEUE_LEAS: unknown setting, it has no effect, did you mean QUEUE_LEASE?"]


# -- the token's file


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n"])
def test_the_token_may_stand_in_a_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content.encode())

    assert Config.from_env({"QUEUE_API_TOKEN_FILE": str(file)}).api_token == TOKEN


def test_a_file_that_can_not_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert problems_in_env({"QUEUE_API_TOKEN_FILE": "missing", "QUEUE_WORKERS": "0"}) == (
        "QUEUE_API_TOKEN_FILE: 'missing' can't be read: No such file or directory",
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


def test_a_refused_token_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n\n")

    problems = [
        *problems_in_env({"QUEUE_API_TOKEN": f" {TOKEN}"}),
        *problems_in_env({"QUEUE_API_TOKEN": TOKEN, "QUEUE_API_TOKEN_FILE": str(file)}),
        *problems_in_env({"QUEUE_API_TOKEN_FILE": str(file)}),
    ]

    assert len(problems) == 3
    assert TOKEN not in "".join(problems)
