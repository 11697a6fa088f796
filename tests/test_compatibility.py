"""
The versions that we claim: each has an environment of tox, which has them indeed, and its run is in the reference.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from typing import Final

import pytest
from sqlalchemy import URL
from sqlalchemy.exc import LegacyAPIWarning, MovedIn20Warning, SADeprecationWarning, SAPendingDeprecationWarning

from sqlalchemy_brooq.demo.binaries import OLDEST_MAJOR
from tests.commands import environment
from tests.pages import table
from tests.servers import ROOT
from tests.versions import (
    NEWEST_POSTGRESQL,
    PACKAGES,
    broken,
    environments,
    floors,
    found,
    promised,
    this_environment,
)

PAGE: Final = ROOT / "docs/reference/compatibility.md"
DEPRECATIONS: Final = [
    DeprecationWarning,
    PendingDeprecationWarning,
    SADeprecationWarning,
    SAPendingDeprecationWarning,
    LegacyAPIWarning,
    MovedIn20Warning,
]


def test_an_environment_has_the_versions_that_its_name_promises(server_url: URL) -> None:
    name = this_environment()

    assert broken(promised(name) if name else {}, found(server_url)) == {}


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("py311-sqlalchemy20", {"python": "3.12.1", "sqlalchemy": "2.0.58", "postgresql": "18.6"}),
        ("py311-sqlalchemy20", {"python": "3.11.7", "sqlalchemy": "2.1.9", "postgresql": "18.6"}),
        ("py311-sqlalchemy20", {"python": "3.11.7", "sqlalchemy": "2.0.58", "postgresql": "17.11"}),
        ("py311-sqlalchemy20-pg14", {"python": "3.11.7", "sqlalchemy": "2.0.58", "postgresql": "18.6"}),
        ("py311-floors", {**floors(), "python": "3.11.7", "postgresql": "18.6", "click": "8.5.1"}),
    ],
)
def test_an_environment_with_other_versions_is_noticed(name: str, versions: dict[str, str]) -> None:
    assert len(broken(promised(name), versions)) == 1


def test_each_python_that_we_claim_meets_each_sqlalchemy() -> None:
    pythons = re.findall(r"Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text())

    assert pythons
    assert {f"py3{minor}-sqlalchemy{series}" for minor in pythons for series in ("20", "21")} <= set(environments())


def test_each_older_postgresql_that_we_claim_has_its_environment() -> None:
    majors = sorted(name.rpartition("-pg")[2] for name in environments() if "-pg" in name)

    assert majors == [str(major) for major in range(OLDEST_MAJOR, int(NEWEST_POSTGRESQL))]


def test_plain_tox_and_so_ci_runs_none_of_them() -> None:
    (default,) = re.findall(r"^env_list = (.+)$", (ROOT / "tox.ini").read_text(), re.MULTILINE)

    assert not set(default.split(", ")) & set(environments())
    assert (ROOT / ".ci/run").read_text().rstrip().endswith(".venv/bin/tox run")


def test_the_floors_of_tox_are_those_of_the_project() -> None:
    pinned = re.findall(r"^    floors: ([\w-]+)(?:\[\w+\])?==([\d.]+)$", (ROOT / "tox.ini").read_text(), re.MULTILINE)

    assert tuple(floors()) == PACKAGES
    assert broken(floors(), dict(pinned)) == {}


def test_the_reference_keeps_a_run_of_each_environment() -> None:
    rows = table(PAGE, "environment")

    assert [row[0] for row in rows] == [f"`{name}`" for name in environments()]
    for name, (_, *cells) in zip(environments(), rows, strict=True):
        *versions, which, passed, _, day = cells
        assert which in {"all", "some"}
        assert broken(promised(name), dict(zip(["python", *PACKAGES, "postgresql"], versions, strict=True))) == {}
        assert int(passed) > 0
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", day)


def test_the_readme_needs_what_the_project_needs() -> None:
    readme = (ROOT / "README.md").read_text().replace("\n", " ")
    oldest = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[0]

    assert (
        f"It needs Python {oldest} or newer, SQLAlchemy {floors()['sqlalchemy']} or newer, psycopg 3, and PostgreSQL"
        f" {OLDEST_MAJOR} or newer." in readme
    )


@pytest.mark.parametrize("category", DEPRECATIONS)
def test_what_is_deprecated_is_an_error_in_a_test(category: type[Warning]) -> None:
    with pytest.raises(category):
        warnings.warn("it goes", category, stacklevel=1)


@pytest.mark.parametrize("category", DEPRECATIONS)
def test_what_is_deprecated_is_an_error_in_a_process_that_a_test_starts(category: type[Warning]) -> None:
    program = f"import warnings, sqlalchemy.exc as exc\nwarnings.warn('it goes', exc.{category.__name__})"
    if category.__module__ == "builtins":
        program = program.replace("exc.", "")

    for variables in (dict(os.environ), environment({})):
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False
        )
        assert f"{category.__name__}: it goes" in done.stderr
        assert done.returncode == 1
