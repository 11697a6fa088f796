from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.cli.endings import Refused, masked
from sqlalchemy_brooq.cli.run import FLAGS
from sqlalchemy_brooq.cli.settings import database_url, load_dotenv, settings_over
from sqlalchemy_brooq.config import Config, ConfigKeywords, HandlerOptions
from sqlalchemy_brooq.errors import ConfigError, LifecycleError
from sqlalchemy_brooq.settings import SETTINGS
from tests.commands import brooq_worker, command_after, environment

SECRET = "S3cr%40t!%25"  # noqa: S105 - a secret to look for
ADDRESS = f"postgresql://shop:{SECRET}@127.0.0.1:1/shop"
FILE = "DATABASE_URL_FILE"


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """
    Begin with none of our variables, and take back what a test sets.
    """
    with patch.dict(os.environ, environment({"QUEUE_LISTEN_ADDRESS": ""}), clear=True):
        yield


def over(config: Config | None = None, /, **options: str) -> ConfigKeywords:
    return settings_over(config or Config(), options, FLAGS)


def refusal(**options: str) -> tuple[str, ...]:
    with pytest.raises(Refused) as refused:
        over(**options)
    assert refused.value.exit_code == 2
    return refused.value.problems


# -- precedence


def test_an_option_goes_before_the_environment_and_that_before_the_program() -> None:
    os.environ.update(QUEUE_WORKERS="3", QUEUE_PREFETCH="3")

    config = Config(workers=2, prefetch=2, max_attempts=2)

    assert over(config, workers="4") == {"workers": 4, "prefetch": 3}


def test_an_empty_option_and_an_empty_variable_count_as_not_given() -> None:
    os.environ.update(QUEUE_WORKERS=" ", QUEUE_LEASE="")

    assert over(workers="", lease=" ") == {}


def test_every_setting_of_the_environment_is_taken() -> None:
    texts = {"wakeup": "poll", "listen_address": "off", "api_token": "t0k3n", "allow_public": "yes"}
    for name, row in SETTINGS.items():
        os.environ[row.variable] = texts.get(name, "7" if row.kind.name == "whole number" else "40s")

    assert over().keys() == SETTINGS.keys()


def test_a_token_in_a_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0k3n\n")
    os.environ["QUEUE_API_TOKEN_FILE"] = str(tmp_path / "token")

    assert over() == {"api_token": "t0k3n"}


def test_all_problems_are_told_at_once_each_by_where_it_comes_from() -> None:
    os.environ.update(QUEUE_MAX_ATTEMPTS="0", QUEUE_LEASE="30")

    problems = refusal(workers="many", shutdown_grace="-1s")

    assert [problem.partition(":")[0] for problem in problems] == [
        "--workers",
        "QUEUE_LEASE",
        "QUEUE_MAX_ATTEMPTS",
        "--shutdown-grace",
    ]
    assert "'many' is not a whole number" in problems[0]


def test_settings_are_judged_together_with_what_the_program_gave() -> None:
    os.environ["QUEUE_ATTEMPT_TIMEOUT"] = "10m"

    assert "QUEUE_MAX_EXECUTION_TIMEOUT, 5m (the default)" in refusal()[0]
    assert over(Config(max_execution_timeout="1h")).keys() == {"attempt_timeout"}
    with pytest.raises(Refused, match="QUEUE_ATTEMPT_TIMEOUT: 10m is longer than max_execution_timeout, 9m"):
        over(Config(max_execution_timeout="9m"))


def test_a_public_address_needs_leave_from_the_environment_or_the_program() -> None:
    (problem,) = refusal(listen_address="0.0.0.0:0")

    assert problem.startswith("--listen: '0.0.0.0:0' is not a loopback address")
    assert "QUEUE_ALLOW_PUBLIC" in problem
    assert over(Config(allow_public=True), listen_address="0.0.0.0:0") == {"listen_address": "0.0.0.0:0"}
    os.environ["QUEUE_ALLOW_PUBLIC"] = "1"
    assert over(listen_address="0.0.0.0:0") == {"listen_address": "0.0.0.0:0", "allow_public": True}


# -- what `run` does with them


@pytest.fixture
def queue() -> brooq.Queue:
    """
    A queue on a database that nobody asks.
    """
    queue = brooq.Queue(create_engine("postgresql+psycopg://"), Config(lease="40s"), registry=CollectorRegistry())
    queue.register("own", print, HandlerOptions(max_attempts=7))
    queue.register("shared", print)
    return queue


def test_reconfigure_reaches_the_settings_what_derives_from_them_and_the_handlers(queue: brooq.Queue) -> None:
    queue.reconfigure(lease="80s", max_attempts=3)

    assert queue.config == Config(lease="80s", max_attempts=3)
    assert queue.config.watchdog_grace == timedelta(seconds=80)
    assert {topic: handler.options.max_attempts for topic, handler in queue._registry.handlers.items()} == {
        "own": 7,
        "shared": 3,
    }


def test_a_refused_reconfigure_changes_nothing(queue: brooq.Queue) -> None:
    queue.register("slow", print, HandlerOptions(backoff_max="2m"))
    queue.register("slower", print, HandlerOptions(backoff_max="3m"))
    before, handlers = queue.config, dict(queue._registry.handlers)

    with pytest.raises(ConfigError, match="workers"):
        queue.reconfigure(workers=0)
    with pytest.raises(ConfigError) as refused:
        queue.reconfigure(backoff_base="4m", backoff_max="5m")

    assert [problem.partition(": ")[0] for problem in refused.value.problems] == [
        "handler for 'slow'",
        "handler for 'slower'",
    ]
    assert queue.config is before
    assert queue._registry.handlers == handlers


def test_reconfigure_comes_too_late_for_a_queue_that_was_closed(queue: brooq.Queue) -> None:
    queue.close()

    with pytest.raises(LifecycleError, match="before start"):
        queue.reconfigure(workers=1)


# -- .env


def test_a_dotenv_file_fills_in_what_the_environment_leaves_open(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("QUEUE_WORKERS=3\nexport QUEUE_LEASE='40s'\nQUEUE_PREFETCH=5\nSHOP=mine\nBARE\n")
    os.environ.update(QUEUE_WORKERS="4", QUEUE_PREFETCH="", SHOP="")

    load_dotenv(tmp_path)

    assert os.environ["QUEUE_WORKERS"] == "4"
    assert os.environ["QUEUE_LEASE"] == "40s"
    assert os.environ["QUEUE_PREFETCH"] == "5", "an empty variable of ours counts as unset"
    assert os.environ["SHOP"] == "", "another's variable may be empty on purpose"
    assert "BARE" not in os.environ


def test_a_dotenv_file_is_looked_for_upwards_and_the_nearest_one_counts(tmp_path: Path) -> None:
    below = tmp_path / "shop" / "jobs"
    below.mkdir(parents=True)
    (tmp_path / ".env").write_text("SHOP_A=far\n")

    load_dotenv(below)
    assert os.environ["SHOP_A"] == "far"

    (tmp_path / "shop" / ".env").write_text("SHOP_B=near\n")
    (tmp_path / ".env").write_text("SHOP_C=far\n")
    load_dotenv(below)
    assert os.environ["SHOP_B"] == "near"
    assert "SHOP_C" not in os.environ


def test_a_folder_called_dotenv_is_somebodys_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SHOP_A=above\n")
    (tmp_path / "shop" / ".env").mkdir(parents=True)

    load_dotenv(tmp_path / "shop")

    assert os.environ["SHOP_A"] == "above"


def test_a_byte_order_mark_hides_no_variable(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SHOP_A=1\n", encoding="utf-8-sig")

    load_dotenv(tmp_path)

    assert os.environ["SHOP_A"] == "1"


def test_a_line_that_is_not_understood_is_warned_about_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text(f"SHOP_A=1\nSHOP_B='{SECRET}\nSHOP_C=3\n")

    load_dotenv(tmp_path)

    said = capsys.readouterr().err
    assert said == f"Warning: {tmp_path}/.env, line 2: not understood and left out, write NAME=value\n"
    assert os.environ["SHOP_A"] == "1"
    assert os.environ["SHOP_C"] == "3"


@pytest.mark.parametrize("content", [b"SHOP=\xff\xfe\n", b"SHOP=a\x00b\n"])
def test_a_dotenv_file_that_is_no_text_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".env").write_bytes(content)

    with pytest.raises(Refused, match=rf"^{tmp_path}/\.env"):
        load_dotenv(tmp_path)


def test_without_python_dotenv_the_file_is_left_alone_and_a_note_says_so(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DATABASE_URL=sqlite://\n")

    answer = brooq_worker("migrate", cwd=tmp_path, command=command_after("import sys; sys.modules['dotenv'] = None"))

    assert answer.code == 2
    note, error = answer.err.splitlines()
    assert note == f"Note: {tmp_path}/.env is not read: python-dotenv is not installed"
    assert error.startswith("Error: there is no database to work on")


# -- the database's address


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_each_way_to_write_the_address_leads_to_psycopg(scheme: str) -> None:
    os.environ["DATABASE_URL"] = f"{scheme}://shop:{SECRET}@db:5433/shop?sslmode=require\n"

    url = database_url(None)
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port) == ("shop", "S3cr@t!%", "db", 5433)
    assert url.query == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"mysql+pymysql://shop:{SECRET}@db/shop", "'mysql+pymysql'"),
        (f"sqlite:///{SECRET}", "'sqlite'"),
        (f"postgresql+asyncpg://shop:{SECRET}@db/shop", "'asyncpg'"),
        (f"postgresql//shop:{SECRET}@db/shop", "can't be read"),
        (f"postgresql://shop:{SECRET}@db:port/shop", "can't be read"),
        (f"postgresql://shop:S3@{SECRET}@db/shop", "%40"),
        (f"host=db password={SECRET}", "can't be read"),
    ],
)
@pytest.mark.parametrize("source", ["--database-url", "DATABASE_URL", FILE])
def test_another_address_is_refused_by_name_and_without_its_password(
    tmp_path: Path, source: str, text: str, reason: str
) -> None:
    (tmp_path / "address").write_text(text)
    if source != "--database-url":
        os.environ[source] = text if source == "DATABASE_URL" else str(tmp_path / "address")

    with pytest.raises(Refused) as refused:
        database_url(text if source == "--database-url" else None)

    (problem,) = refused.value.problems
    assert problem.startswith(f"{source}: ")
    assert reason in problem
    assert "S3cr" not in problem


def test_the_option_goes_before_the_variables_which_are_not_even_read() -> None:
    os.environ.update({"DATABASE_URL": "mysql://", FILE: "/nowhere"})

    assert database_url("postgres://db/shop").host == "db"


def test_the_address_can_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "address").write_text(f"{ADDRESS}\r\n")
    os.environ[FILE] = str(tmp_path / "address")

    assert database_url(None).password == "S3cr@t!%"  # noqa: S105 - as above


def test_two_addresses_are_one_too_many() -> None:
    os.environ.update({"DATABASE_URL": ADDRESS, FILE: "/somewhere"})

    with pytest.raises(Refused, match="DATABASE_URL is set as well: keep one"):
        database_url(None)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.exists, "No such file"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.write_text(" \n"), "is empty"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.symlink_to("/dev/zero"), "longer than 65536 bytes"),
    ],
)
def test_a_file_without_an_address_is_one_error(tmp_path: Path, make: Any, reason: str) -> None:
    make(tmp_path / "address")
    os.environ[FILE] = str(tmp_path / "address")

    with pytest.raises(Refused, match=reason) as refused:
        database_url(None)

    assert len(refused.value.problems) == 1


# -- secrets


PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1).map(lambda text: f"S3cr{text}")


@given(PASSWORDS, st.sampled_from(["postgres://shop:{}@db/shop", "postgres//shop:{}@db", "shop:{}@db", "://:{}@"]))
def test_no_password_in_an_address_is_shown_however_it_is_misspelt(password: str, address: str) -> None:
    said = masked(f"the address {address.format(password)} is no good")

    assert "S3cr" not in said
    assert said.startswith("the address ")
    assert said.endswith(" is no good")


@pytest.mark.parametrize("text", [f"host=db password={SECRET} x", f"host=db password='{SECRET} {SECRET}'"])
def test_no_password_in_a_connection_string_is_shown(text: str) -> None:
    assert "S3cr" not in masked(text)


def test_what_stands_in_the_secret_variables_is_never_shown() -> None:
    os.environ.update(DATABASE_URL=f"a b {SECRET}", QUEUE_API_TOKEN="t0k3n-1")  # noqa: S106 - as above

    assert masked(f"no: 'a b {SECRET}' t0k3n-1") == "no: '<DATABASE_URL>' <QUEUE_API_TOKEN>"


# -- the demo

FAKE_SHOP = """
import sys, types
module = types.ModuleType("sqlalchemy_brooq.demo.shop")
module.run_demo = lambda url, **options: print(url, options) or 3
sys.modules[module.__name__] = module
"""


def test_the_demo_hands_over_its_options_and_ends_with_the_shops_exit_code(tmp_path: Path) -> None:
    command = command_after(FAKE_SHOP)

    embedded = brooq_worker("demo", cwd=tmp_path, command=command, DATABASE_URL=ADDRESS)
    given = brooq_worker("demo", "--database-url", "postgres://db/shop", "--seed", "7", cwd=tmp_path, command=command)

    assert (embedded.code, embedded.out) == (3, "None {}\n")
    assert (given.code, given.out) == (3, "postgresql+psycopg://db/shop {'seed': 7}\n")


def test_the_demo_without_what_it_needs_is_one_error_with_the_way_out(tmp_path: Path) -> None:
    command = command_after("import sys; sys.modules['sqlalchemy_brooq.demo.shop'] = None")

    answer = brooq_worker("demo", cwd=tmp_path, command=command)

    assert answer.code == 1
    assert "pip install 'sqlalchemy-brooq[demo]'" in answer.error


def test_the_demo_refuses_another_dialect(tmp_path: Path) -> None:
    answer = brooq_worker("demo", "--database-url", "mysql://db/shop", cwd=tmp_path)

    assert answer.code == 2
    assert answer.error.startswith("--database-url: the database URL names 'mysql'")


# -- help


@pytest.mark.parametrize("command", [(), ("run",), ("migrate",), ("demo",)])
def test_every_command_has_help(tmp_path: Path, command: tuple[str, ...]) -> None:
    answer = brooq_worker(*command, "--help", cwd=tmp_path, DATABASE_URL=ADDRESS)

    assert answer.code == 0
    assert "Usage:" in answer.out
    assert not answer.err
    assert SECRET not in answer.out


def test_the_version_is_told(tmp_path: Path) -> None:
    answer = brooq_worker("--version", cwd=tmp_path)

    assert answer.code == 0
    assert answer.out.startswith("brooq-worker 0.")
