"""
Let the tests look for a fault: a fork for each mutant, of a process that has imported everything but the code.

The fork imports the changed module in the place of the one in the file, and runs the tests until one fails, those first
that found the most before. A clone of one migrated database is all that the tests share.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

import pytest

from tests.mutation.mutants import Mutant

LIBRARIES: Final = (
    *("sqlalchemy.ext.asyncio", "sqlalchemy.dialects.postgresql.psycopg", "psycopg", "asyncpg"),
    *("prometheus_client", "click", "hypothesis", "opentelemetry.trace", "pydantic", "msgspec", "multiprocessing"),
)
"""What the code and its tests import."""
TICK: Final = 0.02
PATIENCE: Final = 5.0
"""How many times as long as the unchanged code a mutant may take; one without an end is found as well."""
NO_END: Final = "no end in sight"
PLUGINS: Final = ("pytest_timeout", "pytest_postgresql.plugin", "pytest_brooq")
"""What the tests need of those that are installed; to look for them takes longer than many a test."""
OPTIONS: Final = (
    *("-q", "-x", "--assert=plain", "--timeout=300", "-pno:cacheprovider", "-Wignore::pytest.PytestWarning"),
    *(f"-p{name}" for name in PLUGINS),
)
PACKAGE: Final = "sqlalchemy_brooq"


@dataclass
class Verdict:
    """
    What a run of tests said: the test that failed, or nothing and how long each took.
    """

    failed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


class _Changed(importlib.machinery.SourceFileLoader):
    """
    Loads a module from memory.
    """

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - the base class would take what it has cached
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """
    Finds one module, before others find it in its file.
    """

    def __init__(self, loader: _Changed) -> None:
        self._loader = loader

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> Any:  # noqa: ARG002 - the base class's signature
        if fullname != self._loader.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


class _Plugin:
    """
    Orders the tests, lends them the database, and takes down what they say.
    """

    def __init__(self, template: str, killers: Counter[str], seconds: dict[str, float], longest: float) -> None:
        self._template = template
        self._killers = killers
        self._seconds = seconds
        self._longest = longest
        self.verdict = Verdict()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item
            for item in items
            if not item.get_closest_marker("slow") and self._seconds.get(item.nodeid, 0) <= self._longest
        ]
        items.sort(key=lambda item: (-self._killers[item.nodeid], self._seconds.get(item.nodeid, 0)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> object:
        """
        Answer for the fixture that would migrate a database for each run.
        """
        if fixturedef.argname != "migrated":
            return None
        result = SimpleNamespace(template_dbname=self._template)
        fixturedef.cached_result = result, fixturedef.cache_key(request), None
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self.verdict.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.verdict.failed = report.nodeid


def prepare() -> None:
    """
    Import what every run needs, once; not the code, and not its tests.
    """
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    compileall.compile_dir("tests", quiet=2)  # by whose pytest they are read before, they have other bytecode
    for name in (*LIBRARIES, *PLUGINS):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    code = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    if code:
        raise RuntimeError(f"{code[0]} is imported already, so that no fork could import another one")


class Runner:
    """
    Runs the tests of one module, unchanged first.

    Args:
        path: The module's file.
        tests: Files of tests, or ids of some.
        templates: Databases to clone, one for each process.
        longest: Seconds; a test that takes longer is left out.
        show: Whether pytest's own output is shown.
    """

    def __init__(
        self, path: Path, tests: Sequence[str], templates: Sequence[str], *, longest: float, show: bool = False
    ) -> None:
        self.path = path
        self._tests = tests
        self._free = list(templates)
        self._longest = longest
        self.show = show
        self._killers: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self.deadline = 900.0

    def learn(self) -> int:
        """
        Run the tests on the code as it is, and return how many there are.

        Raises:
            RuntimeError: One fails: it would find every mutant.
        """
        unchanged = Mutant(0, "", "", self.path.read_text())
        verdict = next(iter(self.verdicts([unchanged])))[1]
        if verdict.failed:
            raise RuntimeError(f"{verdict.failed} fails on the unchanged {self.path}")
        self._seconds = verdict.seconds
        taken = [one for one in verdict.seconds.values() if one <= self._longest]
        self.deadline = 20.0 + PATIENCE * sum(taken)
        return len(taken)

    def verdicts(self, mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, Verdict]]:
        """
        Yield each of *mutants* with what the tests said, as they say it.
        """
        waiting = list(reversed(mutants))
        running: list[_Run] = []
        while waiting or running:
            while waiting and self._free:
                running.append(_Run(self, waiting.pop(), self._free.pop()))
            time.sleep(TICK)
            for run in [one for one in running if one.is_over()]:
                running.remove(run)
                verdict = run.verdict()
                self._free.append(run.template)
                self._killers[verdict.failed] += 1
                yield run.mutant, verdict

    def look(self, mutant: Mutant, template: str) -> Verdict:
        """
        Run the tests on *mutant*, in a process that is for nothing else.
        """
        name = ".".join(self.path.with_suffix("").parts)
        sys.meta_path.insert(0, _Finder(_Changed(name, self.path, mutant.source)))
        plugin = _Plugin(template, self._killers, self._seconds, self._longest if self._seconds else float("inf"))
        code = pytest.main([*OPTIONS, *self._tests], plugins=[plugin])
        if code and not plugin.verdict.failed:
            plugin.verdict.failed = f"pytest ({pytest.ExitCode(code).name})"
        return plugin.verdict


class _Run:
    """
    One fork; it writes what its tests said into a file, as pipes would be held by whatever it leaves behind.
    """

    def __init__(self, runner: Runner, mutant: Mutant, template: str) -> None:
        self.mutant = mutant
        self.template = template
        self._answer = Path(tempfile.mkdtemp(prefix="brooq-mutant-")) / "verdict"
        self._deadline = time.monotonic() + runner.deadline
        self._pid = os.fork()
        if not self._pid:
            self._work(runner)

    def _work(self, runner: Runner) -> NoReturn:
        os.setsid()
        if not runner.show:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
        try:
            verdict = runner.look(self.mutant, self.template)
        except BaseException as error:
            verdict = Verdict(f"{type(error).__name__}: {error}")
        self._answer.write_bytes(pickle.dumps(verdict))
        os._exit(0)

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline or os.waitpid(self._pid, os.WNOHANG) != (0, 0)

    def verdict(self) -> Verdict:
        """
        Return what the fork said, and end all that it left.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        try:
            said: Verdict = pickle.loads(self._answer.read_bytes())  # noqa: S301 - our own
        except (FileNotFoundError, EOFError):
            said = Verdict(NO_END)
        shutil.rmtree(self._answer.parent)
        return said
