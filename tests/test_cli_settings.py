from __future__ import annotations

import os
from pathlib import Path

import pytest

from sqlalchemy_brooq.cli.endings import Refused, masked
from sqlalchemy_brooq.cli.run import FLAGS
from sqlalchemy_brooq.cli.settings import database_url, load_dotenv, settings_over
from sqlalchemy_brooq.config import SETTINGS, Config, format_duration
from tests.commands import COMMAND, brooq_worker

PASSWORD = "S3cr%40t!%25"  # noqa: S105 - a secret to look for
NO_DOTENV = "import sys; sys.modules['dotenv'] = None; from sqlalchemy_brooq.cli import main; main()"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """
    Start with none of our variables set, and let what a test sets go with it.
    """
    monkeypatch.setattr(os, "environ", type(os.environ)(
        {}, os.environ.encodekey, os.environ.decodekey, os.environ.encodevalue, os.environ.decodevalue
    ))


def problems_of(refused: pytest.ExceptionInfo[Refused]) -> tuple[str, ...]:
    assert refused.value.exit_code == 2
    return refused.value.problems
