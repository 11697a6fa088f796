"""
Pages of the documentation, followed as a reader would: block by block, in a folder and a database of one's own.

What is done with a block, its language says:

``python``
    Is added to the file that its first line names: ``# jobs.py``.
``diff``
    Is a change to the file that its first line names: ``--- alembic.ini``. The lines that it takes out, and those that
    it only shows, must stand there once, one below the other.
``shell``
    Each line is a command. ``brooq-worker run`` goes on in the background until another one begins, or the page ends;
    then it gets Ctrl-C, and must end with exit code 0. So must all others, but for one that the page says ``# fails``.
    A web server, ``uvicorn`` or ``flask run``, goes on like a worker, on a port of its own, which takes the place of
    the one that a page names.
    ``brooq-worker web`` does so too, on any free port, which then stands for the one that the page names.
``sql``
    Is executed. What begins with SELECT is asked again until the answer is the one that the page shows.
``text``
    Is the answer to the block before it, as psql or the shell shows it; ``…`` stands for anything within a line.
``output``
    Some lines of what the worker prints, sooner or later.

Where that can't be done, a comment above the block says why, in one line: ``<!-- not run: it installs something -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from types import TracebackType
from typing import Final, Self

import psycopg
import pytest
from sqlalchemy import URL

from tests.commands import COMMAND as COMMAND_LINE
from tests.commands import RunningWorker, brooq_worker, environment, shown
from tests.psql import libpq_variables, psql_folder
from tests.servers import ROOT
from tests.waiting import eventually

COMMAND: Final = (sys.executable, "-c", "from sqlalchemy_brooq.cli import main; main(prog_name='brooq-worker')")

PROGRAMS: Final = {"alembic": "alembic", "brooq-worker": "sqlalchemy_brooq", "pytest": "pytest"}
"""Those that a shell is to find, and their modules."""
SERVERS: Final = {"uvicorn": "127.0.0.1:8000", "flask": "127.0.0.1:5000"}
"""Web servers, and the address of each that pages name."""
ANY_PORT: Final = {"UVICORN_PORT": "0", "FLASK_RUN_PORT": "0"}
DASHBOARD: Final = "127.0.0.1:8091"
"""Where ``brooq-worker web`` listens unless it is told otherwise."""

ACTING: Final = frozenset({"diff", "python", "shell", "sql"})
"""Languages that ask a reader to do something."""
SHOWING: Final = frozenset({"ini", "json", "promql", "toml", "yaml"})
"""Languages that only show something."""

_FENCE: Final = re.compile(r"^(?P<ticks>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=ticks)$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NOT_RUN: Final = re.compile(r"<!-- not run: .+ -->\s*\Z")
_FILE_NAME: Final = re.compile(r"# ([\w/]+\.py)\b")
_DIFF_NAME: Final = re.compile(r"--- ([\w./]+)")
_RULE: Final = re.compile(r"[-+]*")


@dataclass(frozen=True, slots=True)
class Block:
    """
    A fenced block of a page.
    """

    place: str
    section: str
    language: str
    text: str
    is_run: bool


def blocks(page: Path) -> Iterator[Block]:
    """
    Yield the blocks of *page* in their order.
    """
    content = page.read_text()
    for match in _FENCE.finditer(content):
        line = content.count("\n", 0, match.start()) + 1
        is_run = _NOT_RUN.search(content, 0, match.start()) is None
        headings = _HEADING.findall(_FENCE.sub("", content[: match.start()]))
        yield Block(f"{page}:{line}", headings[-1] if headings else "", match["language"], match["text"], is_run)


def asks_for_something(page: Path) -> bool:
    """
    Tell whether a reader of *page* is to do something.
    """
    return any(block.is_run and block.language in ACTING for block in blocks(page))


def makes_the_table(page: Path) -> bool:
    """
    Tell whether *page* begins with a database that has no table `job`.
    """
    return any(f"\n{command}" in page.read_text() for command in ("brooq-worker migrate\n", "alembic upgrade "))


def table(page: Path, first: str) -> list[list[str]]:
    """
    Return the cells of the one table of *page* whose first column is called *first*.
    """
    found = re.findall(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    assert len(found) == 1, f"{page} has {len(found)} tables that begin with {first!r}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]


class Reader:
    """
    Follows pages.

    Args:
        folder: Where the files go and commands run.
        database: What ``DATABASE_URL`` is for every command, and where SQL is executed.
        patience: Seconds until an answer must be the one that is shown.
        path: Where Python finds the library, and what pip would have installed beside it.
    """

    def __init__(self, folder: Path, database: URL, patience: float = 30.0, path: Iterable[Path] = (ROOT,)) -> None:
        self._folder = folder
        self._database = database
        self._patience = patience
        self._url = shown(database)
        self._python_path = ":".join(map(str, path))
        self._answer: Callable[[], list[str]] = list
        self._worker: RunningWorker | None = None
        self._server: RunningWorker | None = None
        self._addresses: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        address = self._database.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = self._stack.enter_context(psycopg.connect(address, autocommit=True))
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._stack.close()

    def follow(self, page: Path, section: str | None = None) -> None:
        """
        Do what *page* says, and check that it answers what it shows.

        Args:
            page: The page.
            section: The heading of a part of it that is to be followed alone, with what isn't run elsewhere.
        """
        steps = {
            "diff": self._change,
            "python": self._write,
            "shell": self._command,
            "sql": self._query,
            "text": self._compare,
            "output": self._listen,
        }
        for block in blocks(page):
            is_meant = block.is_run if section is None else block.section == section
            is_shown = block.language in SHOWING or block.language.startswith("{")  # a directive of Sphinx's
            if is_meant and not is_shown:
                assert block.language in steps, f"{block.place}: nobody knows how to follow {block.language!r}"
                steps[block.language](block)
        self._end_worker()
        self._end_server()

    def _write(self, block: Block) -> None:
        named = _FILE_NAME.match(block.text)
        assert named, f"{block.place}: the first line doesn't name the file, as in '# jobs.py'"
        compile(block.text, block.place, "exec")
        with (self._folder / named[1]).open("a") as file:
            file.write(block.text)

    def _change(self, block: Block) -> None:
        named = _DIFF_NAME.match(block.text)
        assert named, f"{block.place}: the first line doesn't name the file, as in '--- alembic.ini'"
        lines = block.text.splitlines(keepends=True)[1:]
        old = "".join(line[1:] for line in lines if not line.startswith("+"))
        new = "".join(line[1:] for line in lines if not line.startswith("-"))
        path = self._folder / named[1]
        before = path.read_text()
        assert before.count(old) == 1, f"{block.place}: {named[1]} has these lines {before.count(old)} times"
        path.write_text(before.replace(old, new))

    def _command(self, block: Block) -> None:
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            match words:
                case []:
                    continue
                case ["brooq-worker", "run", *arguments] if "--help" not in arguments:
                    self._start_worker(arguments)
                case [server, *arguments] if server in SERVERS:
                    self._start_server(server, arguments)
                case ["brooq-worker", "web", *arguments] if "--help" not in arguments:
                    self._serve(arguments)
                case _ if {"|", ">", "alembic", "curl", "psql", "pytest"} & set(words):
                    self._answers(self._shell(line, f"{block.place}: {line}"))
                case ["brooq-worker", *arguments]:
                    answer = brooq_worker(
                        *arguments,
                        cwd=self._folder,
                        command=COMMAND,
                        DATABASE_URL=self._url,
                        PYTHONPATH=self._python_path,
                    )
                    assert answer.code == 0, f"{block.place}: {line}: {answer}"
                    self._answers(answer.out)
                case ["python", *arguments]:
                    self._answers(self._done([sys.executable, *arguments], f"{block.place}: {line}"))
                case _:
                    raise AssertionError(f"{block.place}: nobody knows how to follow {line!r}")

    def _shell(self, line: str, place: str) -> str:
        path = os.pathsep.join([str(self._programs()), psql_folder(), os.environ["PATH"]])
        for named, real in self._addresses.items():
            line = line.replace(named, real)
        command = ["bash", "-euo", "pipefail", "-c", line]
        return self._done(command, place, PATH=path, **libpq_variables(self._database))

    def _done(self, command: list[str], place: str, **variables: str) -> str:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=environment({"DATABASE_URL": self._url, "PYTHONPATH": self._python_path, **variables}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == place.endswith("# fails"), f"{place}: {done.stdout}{done.stderr}"
        return done.stdout

    def _programs(self) -> Path:
        """
        Return a folder with the programs that a shell is to find: those of this Python, installed or not.
        """
        folder = self._folder / ".programs"
        if not folder.exists():
            folder.mkdir()
            for name, module in PROGRAMS.items():
                program = folder / name
                program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
                program.chmod(0o755)
        return folder

    def _start_worker(self, arguments: list[str]) -> None:
        self._end_worker()
        worker = RunningWorker(*arguments, cwd=self._folder, DATABASE_URL=self._url, PYTHONPATH=self._python_path)
        self._worker = self._stack.enter_context(worker)
        worker.announcement()

    def _serve(self, arguments: list[str]) -> None:
        self._end_worker()
        command = (*COMMAND_LINE, "web", "--listen", "127.0.0.1:0")
        web = RunningWorker(
            *arguments, cwd=self._folder, command=command, DATABASE_URL=self._url, PYTHONPATH=self._python_path
        )
        self._worker = self._stack.enter_context(web)
        self._addresses[DASHBOARD] = web.announcement().partition("//")[2].rstrip("/")

    def _end_worker(self) -> None:
        if self._worker is not None:
            code = self._worker.end(SIGINT)
            assert code == 0, self._worker.err
            self._worker = None

    def _start_server(self, server: str, arguments: list[str]) -> None:
        self._end_server()
        folder = self._folder / ".server"
        folder.mkdir(exist_ok=True)
        variables = {"DATABASE_URL": self._url, "PYTHONPATH": f"{self._folder}:{self._python_path}"} | ANY_PORT
        started = RunningWorker(
            *arguments, cwd=folder, stdout=None, command=(sys.executable, "-m", server), **variables
        )
        self._server = self._stack.enter_context(started)
        running = re.compile(r"running on http://([\d.:]+)", re.IGNORECASE)
        eventually(lambda: running.search(started.err) or started.process.poll() is not None)
        found = running.search(started.err)
        assert found, started.err
        self._addresses[SERVERS[server]] = found[1]

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.end(SIGINT)
            self._server = None

    def _answers(self, output: str) -> None:
        self._answer = output.splitlines

    def _query(self, block: Block) -> None:
        if block.text.lstrip().startswith("SELECT"):
            self._answer = lambda: answers(self._connection, block.text)
            self._answer()
        else:
            answer = answers(self._connection, block.text)
            self._answer = lambda: answer

    def _compare(self, block: Block) -> None:
        expected = _patterns(block)

        def matches() -> bool:
            lines = _normal(self._answer())
            return len(lines) == len(expected) and all(map(re.Pattern.fullmatch, expected, lines))

        self._await(matches, block, self._answer)

    def _listen(self, block: Block) -> None:
        worker, expected = self._worker, _patterns(block)
        assert worker is not None, f"{block.place} shows the output of a worker, and none runs"

        def said() -> list[str]:
            return [*worker.out.splitlines(), *worker.err.splitlines()]

        # Not the whole of a line: print() sends text and line's end apart, so that those of two handlers may share one.
        self._await(lambda: all(any(map(line.search, _normal(said()))) for line in expected), block, said)

    def _await(self, condition: Callable[[], bool], block: Block, answer: Callable[[], list[str]]) -> None:
        try:
            eventually(condition, self._patience)
        except pytest.fail.Exception:
            text = "\n".join([f"{block.place} shows", block.text, "but the answer is", *answer()])
            raise pytest.fail.Exception(text, pytrace=False) from None


def _patterns(block: Block) -> list[re.Pattern[str]]:
    return [re.compile(".*".join(map(re.escape, line.split("…")))) for line in _normal(block.text.splitlines())]


def answers(connection: psycopg.Connection[tuple[object, ...]], statements: str) -> list[str]:
    """
    Return what psql prints about *statements*, but for the spaces that align it.
    """
    cursor = connection.execute(statements.encode())
    lines: list[str] = []
    while True:
        result = cursor.pgresult
        assert result is not None
        if cursor.description is None:
            lines.append(cursor.statusmessage or "")
        else:
            lines.append("|".join(column.name for column in cursor.description))
            for row in range(result.ntuples):
                values = (result.get_value(row, column) for column in range(result.nfields))
                lines.append("|".join("" if value is None else value.decode() for value in values))
            lines.append("(1 row)" if result.ntuples == 1 else f"({result.ntuples} rows)")
        if not cursor.nextset():
            return lines


def _normal(lines: Iterable[str]) -> list[str]:
    """
    Return *lines* without what only aligns them.
    """
    return ["|".join(cell.strip() for cell in line.split("|")) for line in lines if not _RULE.fullmatch(line.strip())]
