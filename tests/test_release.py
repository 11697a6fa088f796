"""
What the release check looks at, as far as that can be seen without building anything.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from sqlalchemy import URL

import sqlalchemy_brooq as brooq
from tests.commands import environment, shown
from tests.release.__main__ import CONSUMER
from tests.release.contents import ABOUT, problems_of_sdist, problems_of_wheel
from tests.servers import ROOT

FILES = [
    "sqlalchemy_brooq/__init__.py",
    "sqlalchemy_brooq/migrations/versions/brooq0001_job.py",
    "sqlalchemy_brooq/py.typed",
    "sqlalchemy_brooq/testing/plugin/pytest_brooq.py",
]
WHEEL = [
    "sqlalchemy_brooq/__init__.py",
    "sqlalchemy_brooq/migrations/versions/brooq0001_job.py",
    "sqlalchemy_brooq/py.typed",
    "pytest_brooq.py",
    *(f"sqlalchemy_brooq-0.1.0.dist-info/{name}" for name in sorted(ABOUT)),
]


def test_a_whole_wheel_has_no_problem() -> None:
    assert problems_of_wheel(WHEEL, FILES) == []


@pytest.mark.parametrize("missing", WHEEL)
def test_a_file_that_a_wheel_lacks_is_named(missing: str) -> None:
    [problem] = problems_of_wheel([name for name in WHEEL if name != missing], FILES)

    assert (missing.partition(".dist-info/")[2] or missing) in problem


@pytest.mark.parametrize("surplus", ["tests/conftest.py", "sqlalchemy_brooq/__pycache__/x.pyc"])
def test_a_file_that_a_wheel_should_not_have_is_named(surplus: str) -> None:
    assert problems_of_wheel([*WHEEL, surplus], FILES) == [f"{surplus} has no business in the wheel"]


def test_a_source_archive_has_what_git_knows() -> None:
    assert problems_of_sdist(["b-1/PKG-INFO", "b-1/README.md"], ["README.md"]) == []
    assert problems_of_sdist(["b-1/PKG-INFO", "b-1/.env"], ["README.md"]) == [
        "README.md is missing from the source archive",
        ".env has no business in the source archive",
    ]


def test_what_the_package_needs_is_there() -> None:
    assert [name for name in FILES if not (ROOT / name).exists()] == []


def test_the_consumer_uses_public_names_only() -> None:
    tree = ast.parse(CONSUMER.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "brooq"
    }
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in [node.module]
        if name is not None
    }

    assert used - {"__file__"} <= set(brooq.__all__)
    assert [name for name in imported if name.startswith("sqlalchemy_brooq")] == []


def test_the_consumer_gets_from_enqueue_to_done(empty_database_url: URL, installed: object) -> None:
    done = subprocess.run(
        [sys.executable, CONSUMER],
        env=environment({"DATABASE_URL": shown(empty_database_url), "PYTHONPATH": f"{installed}:{ROOT}"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done
    assert "order.confirm done after 2 attempts: order 7 is confirmed" in done.stdout
