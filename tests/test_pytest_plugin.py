"""
The pytest plugin: there for whoever asks, and no burden to anybody else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine

from tests.commands import environment, shown
from tests.queues import count
from tests.servers import ROOT

SHOP = """\
import os
import sqlalchemy_brooq as brooq
from sqlalchemy import create_engine

engine = create_engine(os.environ["DATABASE_URL"])
queue = brooq.Queue(engine)

@queue.handler("greet")
def greet(claim):
    queue.enqueue(brooq.Job("greeted"))
"""
CONFTEST = """\
import pytest
import shop

@pytest.fixture
def brooq_queue():
    return shop.queue
"""
TESTS = """\
import shop
from sqlalchemy_brooq import Job
from sqlalchemy_brooq.testing import assert_enqueued, drain, enqueued

def test_it_greets(brooq_session):
    shop.queue.enqueue(Job("greet"))
    drain(brooq_session, shop.queue)
    assert_enqueued(brooq_session, "greeted")

def test_it_finds_nothing(brooq_session):
    assert enqueued(brooq_session) == []
    assert_enqueued(brooq_session, "greeted")
"""
OTHERS = """\
import sys

def test_nothing_of_ours_is_imported_but_the_plugin():
    assert "pytest_brooq" in sys.modules
    assert not {"sqlalchemy", "sqlalchemy_brooq", "alembic"} & sys.modules.keys()
"""


class Consumer:
    """
    A folder with tests in it, and somebody who runs them.
    """

    def __init__(self, folder: Path, installed: Path, database: URL | None = None) -> None:
        self._folder = folder
        self._variables = {"PYTHONPATH": f"{installed}:{ROOT}"}
        if database is not None:
            self._variables["DATABASE_URL"] = shown(database)

    def write(self, **files: str) -> None:
        for name, content in files.items():
            (self._folder / f"{name}.py").write_text(content)

    def python(self, *arguments: str) -> str:
        """
        Run Python, and return what it prints, its exit code last.
        """
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=self._folder,
            env=environment(self._variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return f"{done.stdout}exit code {done.returncode}"

    def pytest(self, *arguments: str) -> str:
        """
        Run pytest, with no settings of anybody's.
        """
        return self.python("-m", "pytest", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", *arguments)


@pytest.fixture
def consumer(tmp_path: Path, installed: Path) -> Consumer:
    return Consumer(tmp_path, installed)


def test_a_run_that_does_not_use_it_imports_nothing_else_of_ours(consumer: Consumer) -> None:
    consumer.write(test_others=OTHERS)

    assert consumer.pytest("-q").endswith("exit code 0")


def test_a_test_that_asks_for_a_session_gets_one_and_leaves_nothing(
    tmp_path: Path, installed: Path, engine: Engine, database_url: URL
) -> None:
    consumer = Consumer(tmp_path, installed, database_url)
    consumer.write(shop=SHOP, conftest=CONFTEST, test_shop=TESTS)

    answer = consumer.pytest("-q")

    assert "1 failed, 1 passed" in answer
    # The failure is shown where the test asserts, and says why; nothing of the kit's own code is in it.
    assert (
        '>       assert_enqueued(brooq_session, "greeted")\nE       AssertionError: no job was enqueued of topic'
        in answer
    )
    assert "E       nothing was enqueued at all\n" in answer
    assert "looking.py" not in answer
    assert count(engine, "job") == 0


def test_a_missing_queue_is_asked_for(consumer: Consumer) -> None:
    consumer.write(test_it="def test_it(brooq_session): ...")

    answer = consumer.pytest("-q")

    assert "define a fixture brooq_queue in your conftest.py that returns it" in answer
    assert "Traceback" not in answer


def test_a_program_that_imports_the_library_before_pytest_is_not_warned(consumer: Consumer) -> None:
    consumer.write(test_it="def test_it(): ...")
    run = "import sqlalchemy_brooq, sys, pytest; sys.exit(pytest.main(['-q', '-W', 'error', '-p', 'no:cacheprovider']))"

    assert consumer.python("-c", run).endswith("exit code 0")


def test_pytest_is_not_imported_by_anything_but_the_plugin(consumer: Consumer) -> None:
    modules = "{name.partition('.')[0] for name in sys.modules}"
    check = f"import sqlalchemy_brooq.testing, sys; print({{'pytest', '_pytest', 'pytest_brooq'}} & {modules})"

    assert consumer.python("-c", check) == "set()\nexit code 0"
