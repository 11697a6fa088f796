"""
``brooq-worker config``: what is in force, where it comes from, and no secret.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqlalchemy_brooq.settings import SETTINGS
from tests.commands import brooq_worker

SECRET = "S3cr%40t!%25"  # noqa: S105 - a secret to look for
PROGRAM = """
import sqlalchemy as sa
import sqlalchemy_brooq as brooq

queue = brooq.Queue(sa.create_engine("postgresql+psycopg://shop@127.0.0.1:1/shop"), brooq.Config(
    workers=7, prefetch=7, lease="7m", retention_ttl_dead="90d"))
queue.register("t", print, brooq.HandlerOptions(attempt_timeout="4m"))
"""


def shown(folder: Path, *arguments: str, **variables: Any) -> dict[str, tuple[Any, str, str]]:
    answer = brooq_worker("config", "--json", *arguments, cwd=folder, **variables)
    assert answer.code == 0, answer
    rows = json.loads(answer.out)
    return {row["variable"]: (row["value"], row["source"], row["place"]) for row in rows}


def test_each_setting_is_shown_with_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / ".env").write_text("QUEUE_MAX_ATTEMPTS=9\nQUEUE_PREFETCH=8\n")
    (tmp_path / "token").write_text("s3cret-token\n")

    found = shown(
        tmp_path,
        "shop:queue",
        "--shutdown-grace",
        "9s",
        QUEUE_PREFETCH="9",
        QUEUE_API_TOKEN_FILE=str(tmp_path / "token"),
    )

    assert found["QUEUE_SHUTDOWN_GRACE"] == ("9s", "option", "--shutdown-grace")
    assert found["QUEUE_PREFETCH"] == (9, "environment", "QUEUE_PREFETCH")
    assert found["QUEUE_MAX_ATTEMPTS"] == (9, ".env", str(tmp_path / ".env"))
    assert found["QUEUE_API_TOKEN"] == ("***", "file", str(tmp_path / "token"))
    assert found["QUEUE_WORKERS"] == (7, "program", "shop:queue")
    assert found["QUEUE_RETENTION_TTL_DEAD"] == ("90d", "program", "shop:queue")
    assert found["QUEUE_REAPER_PERIOD"] == ("1m45s", "default", "max(5s, lease/4)")
    assert found["QUEUE_POLL_INTERVAL"] == ("1s", "default", "")
    assert found["DATABASE_URL"] == (None, "default", "")
    assert list(found) == [*(row.variable for row in SETTINGS.values()), "DATABASE_URL"]


def test_systemd_s_credentials_are_taken_and_a_variable_goes_before_them(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "QUEUE_API_TOKEN").write_text("s3cret-token\n")
    (credentials / "DATABASE_URL").write_text(f"postgres://shop:{SECRET}@db/shop\n")
    folder = {"CREDENTIALS_DIRECTORY": str(credentials)}

    found = shown(tmp_path, **folder)
    assert found["QUEUE_API_TOKEN"] == ("***", "credential", str(credentials / "QUEUE_API_TOKEN"))
    address = "postgresql+psycopg://shop:***@db/shop"
    assert found["DATABASE_URL"] == (address, "credential", str(credentials / "DATABASE_URL"))

    found = shown(tmp_path, **folder, QUEUE_API_TOKEN="another-one", DATABASE_URL="postgres:///other")  # noqa: S106 - made up
    assert found["QUEUE_API_TOKEN"] == ("***", "environment", "QUEUE_API_TOKEN")
    assert found["DATABASE_URL"] == ("postgresql+psycopg:///other", "environment", "DATABASE_URL")


def test_a_credential_that_is_no_token_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "QUEUE_API_TOKEN").write_text("")

    answer = brooq_worker("config", cwd=tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path))

    assert answer.code == 2
    assert answer.error.startswith("QUEUE_API_TOKEN: ")
    assert "is empty" in answer.error


def test_as_text_each_setting_is_a_line(tmp_path: Path) -> None:
    answer = brooq_worker("config", "--workers", "3", cwd=tmp_path, QUEUE_LEASE="30s")

    lines = [line.split(maxsplit=2) for line in answer.out.splitlines()]
    assert ["QUEUE_WORKERS", "3", "option (--workers)"] in lines
    assert ["QUEUE_LEASE", "30s", "environment"] in lines
    assert ["QUEUE_WATCHDOG_GRACE", "30s", "default (lease)"] in lines
    assert ["QUEUE_MAX_REQUEUES", "none", "default"] in lines


def test_all_problems_are_named_at_once_also_of_the_address_and_of_handlers(tmp_path: Path) -> None:
    answer = brooq_worker(
        "config", "--workers", "0", cwd=tmp_path, QUEUE_LEASE="30", DATABASE_URL=f"mysql://u:{SECRET}@h/d"
    )
    assert answer.code == 2
    assert [line.split(":")[1].strip() for line in answer.err.splitlines()] == [
        "--workers",
        "QUEUE_LEASE",
        "DATABASE_URL",
    ]
    assert "S3cr" not in answer.err

    (tmp_path / "shop.py").write_text(PROGRAM)
    answer = brooq_worker("config", "shop:queue", cwd=tmp_path, QUEUE_MAX_EXECUTION_TIMEOUT="3m")
    assert answer.code == 2
    assert "handler for 't': attempt_timeout: 4m is longer than" in answer.error


@pytest.mark.parametrize("query", ["", "?password=S3cr%40t!%25", "?sslpassword=S3cr%40t!%25"])
def test_no_secret_is_shown(tmp_path: Path, query: str) -> None:
    address = f"postgresql://shop:{SECRET}@db/shop{query}"

    token = "S3cr-token"  # noqa: S105 - to be looked for
    for arguments in ((), ("--json",)):
        answer = brooq_worker("config", *arguments, cwd=tmp_path, DATABASE_URL=address, QUEUE_API_TOKEN=token)
        assert answer.code == 0
        assert "S3cr" not in answer.out + answer.err
