from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import URL

from sqlalchemy_brooq.demo.account import MARGIN, WIDTH, Account, table_lines
from sqlalchemy_brooq.demo.catalogue import UNREACHABLE, Forms
from sqlalchemy_brooq.demo.handlers import MAIL_ATTEMPTS, failures_of
from sqlalchemy_brooq.demo.place import checked_url
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.demo.tally import FIGURES, OTHER_JOBS, Notes, promises
from sqlalchemy_brooq.demo.till import Takings
from sqlalchemy_brooq.errors import ConfigError
from tests.commands import COMMAND, environment, shown
from tests.databases import Admin, fresh_database
from tests.servers import ROOT, lives
from tests.waiting import eventually

COMMAND_LINE = (*COMMAND, "demo")
MODULE = (sys.executable, "-m", "sqlalchemy_brooq.demo")

KILLED_HERE = "6. A worker is killed"
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


class RunningDemo:
    """
    The demo in a process of its own, and every process that comes from it.
    """

    def __init__(self, *command: str, **variables: str) -> None:
        self._mark = f"BROOQ_DEMO_OF_TEST={uuid4().hex}"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment({**dict([self._mark.split("=")]), **variables}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []

    def until(self, words: str) -> str:
        """
        Read the account as far as the line with *words*, and return that line.
        """
        for line in self.process.stdout or ():
            self.out.append(line)
            if words in line:
                return line
        pytest.fail(f"{words!r} never came: {''.join(self.out)}{self.errors()}", pytrace=False)

    def end(self, number: int | None = None) -> int:
        """
        Send a signal to the process group, as a terminal does, and return the exit code.
        """
        if number is not None:
            os.killpg(self.process.pid, number)
        self.out += self.process.stdout or ()
        return self.process.wait(60)

    def errors(self) -> str:
        return self.process.stderr.read() if self.process.stderr else ""

    def processes(self) -> dict[int, str]:
        """
        Return what lives of the processes that have inherited the environment: pid -> command.
        """
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark.encode() in (folder / "environ").read_bytes() and lives(int(folder.name)):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def server_folder(self) -> Path:
        """
        Return the folder of the server that it has started.
        """
        places = (re.search(r" unix_socket_directories=(\S+)", command) for command in self.processes().values())
        return Path(next(place[1] for place in places if place))


@contextmanager
def demo(*command: str, **variables: str) -> Iterator[RunningDemo]:
    running = RunningDemo(*command, **variables)
    try:
        with running.process:
            yield running
    finally:
        running.process.kill()


def on(url: URL) -> tuple[str, ...]:
    return (*MODULE, "--database-url", shown(url))


def schemas(admin: psycopg.Connection[Any]) -> list[Any]:
    return admin.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'brooq\\_demo\\_%'").fetchall()


@contextmanager
def connected(url: URL) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shown(url.set(drivername="postgresql")), autocommit=True) as connection:
        yield connection


class Day(NamedTuple):
    """
    A run that has ended, and what was in the database afterwards.
    """

    code: int
    account: list[str]
    schemas: list[Any]
    own_jobs: list[Any]


@pytest.fixture(scope="module")
def day(server_url: URL, admin: Admin, migrated: Any) -> Day:
    """
    A whole run in a database with a queue of the user's own; somebody books an order a second time while it goes on.
    """
    with fresh_database(admin, server_url, template=migrated.template_dbname) as url, connected(url) as connection:
        connection.execute("INSERT INTO job (topic) VALUES ('of.the.user')")
        with demo(*on(url)) as running:
            running.until(KILLED_HERE)
            [(schema,)] = schemas(connection)
            connection.execute(
                f"INSERT INTO {schema}.ledger_entry (order_number, amount)"
                f" SELECT order_number, amount FROM {schema}.ledger_entry ORDER BY id LIMIT 1"
            )
            code = running.end()
        own_jobs = connection.execute("SELECT topic, state, attempts FROM job").fetchall()
        return Day(code, running.out, schemas(connection), own_jobs)


# -- the whole of it


@pytest.mark.slow
def test_the_demo_keeps_every_promise_within_a_minute_and_leaves_nothing_behind() -> None:
    with demo(*COMMAND_LINE) as running:
        running.until(KILLED_HERE)
        folder = running.server_folder() if sys.platform == "linux" else None
        code = running.end()
        errors = running.errors()

    account = "".join(running.out)
    assert code == 0, account
    assert errors == ""
    assert time.monotonic() - running.began < 60
    assert re.search(r"All \d+ promises were kept", account)
    assert "kill -9" in account
    assert "BROKEN" not in account
    if folder is not None:
        assert running.processes() == {}
        assert not folder.exists()


@pytest.mark.slow
def test_the_account_fits_eighty_plain_columns_and_is_never_silent_for_long(day: Day) -> None:
    moments = [float(found[1]) for line in day.account if (found := re.match(r" *(\d+\.\d)s  ", line))]

    assert [line for line in day.account if len(line.rstrip("\n")) > WIDTH] == []
    assert "".join(day.account).isascii()
    assert "\x1b" not in "".join(day.account)
    assert max(later - sooner for sooner, later in pairwise(moments)) < 10


@pytest.mark.slow
def test_a_broken_promise_is_marked_and_the_exit_code_is_one(day: Day) -> None:
    marked = [line.split("|")[0].strip() for line in day.account if "BROKEN" in line and "|" in line]

    assert day.code == 1
    assert marked == ["ledger entries: exactly once", "orders in the report's result"]
    assert any("2 of" in line and "promises BROKEN" in line for line in day.account)


@pytest.mark.slow
def test_on_the_users_server_no_schema_is_left_and_the_users_own_queue_is_untouched(day: Day) -> None:
    assert day.schemas == []
    assert day.own_jobs == [("of.the.user", "pending", 0)]


# -- the end before the end


@needs_proc
def test_ctrl_c_in_the_middle_ends_every_process_and_removes_the_folder() -> None:
    with demo(*COMMAND_LINE) as running:
        running.until("worker B is up")
        folder = running.server_folder()
        assert len(running.processes()) > 3

        code = running.end(signal.SIGINT)

        assert code == 128 + signal.SIGINT
        assert running.processes() == {}
        assert not folder.exists()
        assert "Stopped by SIGINT" in "".join(running.out)
        assert running.errors() == ""


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_ends_every_process_and_drops_the_schema(
    empty_database_url: URL, number: signal.Signals
) -> None:
    with connected(empty_database_url) as connection, demo(*on(empty_database_url)) as running:
        running.until("Starting two worker processes")

        code = running.end(number)

        assert code == 128 + number
        assert running.processes() == {}
        assert schemas(connection) == []
        assert f"Stopped by {number.name}" in "".join(running.out)
        assert running.errors() == ""


@needs_proc
def test_ctrl_c_before_it_has_begun_leaves_nothing_behind(empty_database_url: URL) -> None:
    with connected(empty_database_url) as connection, demo(*on(empty_database_url)) as running:
        eventually(lambda: "schema_keeper" in "".join(running.processes().values()))

        code = running.end(signal.SIGINT)

        assert code == 128 + signal.SIGINT
        assert running.errors() == ""
        eventually(lambda: not running.processes())
        assert schemas(connection) == []


@needs_proc
@pytest.mark.parametrize("moment", ["1. The tables", "worker B is up"])
def test_after_kill_9_the_schema_and_every_process_go_by_themselves(empty_database_url: URL, moment: str) -> None:
    with connected(empty_database_url) as connection, demo(*on(empty_database_url)) as running:
        running.until(moment)
        assert len(schemas(connection)) == 1

        running.end(signal.SIGKILL)

        eventually(lambda: not running.processes(), message="processes were left behind")
        assert schemas(connection) == []


@needs_proc
def test_after_kill_9_the_embedded_server_and_its_folder_go_by_themselves() -> None:
    with demo(*MODULE) as running:
        running.until("worker B is up")
        folder = running.server_folder()

        running.end(signal.SIGKILL)

        eventually(lambda: not running.processes(), timeout=20, message="processes were left behind")
        assert not folder.exists()


@needs_proc
def test_a_worker_that_ends_by_itself_ends_the_demo_with_one_line(empty_database_url: URL) -> None:
    with connected(empty_database_url) as connection, demo(*on(empty_database_url)) as running:
        pid = int(re.findall(r"pid (\d+)", running.until("worker B is up"))[0])
        os.kill(pid, signal.SIGKILL)

        code = running.end()

        assert code == 1
        assert running.errors().startswith("Error: worker B ended by itself with the exit code -9")
        assert running.processes() == {}
        assert schemas(connection) == []


@needs_proc
def test_a_reader_who_goes_away_ends_it_quietly() -> None:
    with demo(*MODULE) as running:
        running.until("1. The tables")
        folder = running.server_folder()
        assert running.process.stdout is not None
        running.process.stdout.close()

        code = running.process.wait(30)

        assert code == 1
        assert running.errors() == ""
        assert running.processes() == {}
        assert not folder.exists()


# -- what can't work


def failed(*command: str, **variables: str) -> tuple[int, str]:
    """
    Return the exit code, and the one line that the demo ends with.
    """
    done = subprocess.run(
        command, cwd=ROOT, env=environment(variables), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "s3cret" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("url", "code", "reason"),
    [
        ("postgresql://u:s3cret@127.0.0.1:1/db", 1, "Connection refused"),
        ("postgresql://u:s3cret@host.invalid/db", 1, "host.invalid"),
        ("postgresql://u:s3cret@127.0.0.1:1/db?nonsense=s3cret", 1, 'invalid connection option "nonsense"'),
        ("mysql://u:s3cret@127.0.0.1/db", 2, "works on postgresql alone"),
        ("postgresql+asyncpg://u:s3cret@127.0.0.1/db", 2, "write postgresql://"),
        ("s3cret", 2, "write it like postgresql://user:password@host:5432/database"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_line_without_the_password(url: str, code: int, reason: str) -> None:
    answer, line = failed(*MODULE, "--database-url", url)

    assert (answer, reason in line) == (code, True), line


def test_a_role_that_may_not_make_a_schema_is_told_what_it_needs(postgres_server: LocalPostgres) -> None:
    with connected(postgres_server.url()) as connection:
        connection.execute("CREATE ROLE guest LOGIN")

    code, line = failed(*on(postgres_server.url().set(username="guest")))

    assert code == 1
    assert "may not make a schema" in line
    assert "GRANT CREATE ON DATABASE postgres TO guest" in line


def test_missing_binaries_are_one_line_that_names_the_ways_out() -> None:
    code, line = failed(*MODULE, BROOQ_PGBIN="/nowhere")

    assert code == 1
    assert "/nowhere holds no initdb" in line


def test_a_url_of_another_driver_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match="psycopg2"):
        checked_url("postgresql+psycopg2://localhost/db")


# -- its parts


def a_day() -> Notes:
    forms = Forms(seed=3)
    handed_in = [
        *forms.take(12, refused=2, sent_twice=3),
        *forms.take(1, customers=[UNREACHABLE]),
        *forms.take(4, pause=1.0),
    ]
    return Notes(
        forms=handed_in,
        takings=Takings(placed=15, refused=2, repeated=3),
        killed="host:1:abc",
        held=[uuid4(), uuid4(), uuid4()],
        mailed_before_the_kill=1,
    )


def figures_of(notes: Notes) -> Mapping[str, int]:
    """
    Return what the database says where everything went well.
    """
    orders, jobs = len(notes.orders), 3 * len(notes.orders) + OTHER_JOBS
    failures = sum(failures_of(form.number, form.pause) for form in notes.reachable)
    return dict.fromkeys(FIGURES, 0) | {
        "orders": orders,
        "jobs": jobs,
        "done": jobs - 2,
        "dead": 1,
        "canceled": 1,
        "heard": 1,
        "failures": failures,
        "last_failures": MAIL_ATTEMPTS,
        "came_back": 3,
        "finished_elsewhere": 3,
        "entries": orders,
        "booked_orders": orders,
        "pieces": 70,
        "taken": 70,
        "mailed": orders - 1,
        "mailed_twice": 1,
        "reported": orders,
    }


def test_a_day_on_which_all_went_well_keeps_every_promise() -> None:
    notes = a_day()

    assert [promise for promise in promises(figures_of(notes), notes) if not promise.is_kept] == []


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_that_is_one_too_low_breaks_a_promise(figure: str) -> None:
    notes = a_day()
    figures = {**figures_of(notes), figure: figures_of(notes)[figure] - 1}

    assert [promise for promise in promises(figures, notes) if not promise.is_kept]


@pytest.mark.parametrize("figure", sorted(FIGURES.keys() - {"mailed_twice"}))
def test_a_figure_that_is_one_too_high_breaks_a_promise(figure: str) -> None:
    notes = a_day()
    figures = {**figures_of(notes), figure: figures_of(notes)[figure] + 1}

    assert [promise for promise in promises(figures, notes) if not promise.is_kept]


@pytest.mark.parametrize(
    "wrong",
    [
        {"takings": Takings(placed=15, refused=2, repeated=2)},
        {"takings": Takings(placed=15, refused=1, repeated=3)},
        {"takings": Takings(placed=16, refused=2, repeated=3)},
        {"held": []},
        {"unclean": 1},
    ],
)
def test_what_the_demo_has_seen_itself_counts_as_well(wrong: dict[str, Any]) -> None:
    notes = a_day()
    figures = figures_of(notes)
    for name, value in wrong.items():
        setattr(notes, name, value)

    assert [promise for promise in promises(figures, notes) if not promise.is_kept]


def test_the_same_seed_is_the_same_day() -> None:
    one, same, other = (Forms(seed).take(20, refused=3, sent_twice=2) for seed in (7, 7, 8))

    assert one == same
    assert one != other
    assert sum(form.is_refused for form in one) == 3
    assert sum(form.is_sent_twice for form in one) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    coloured, plain = Terminal(), Terminal()
    Account(coloured).scene("A heading")
    monkeypatch.setenv("NO_COLOR", "1")
    Account(plain).scene("A heading")

    assert "\x1b" in coloured.getvalue()
    assert "\x1b" not in plain.getvalue()


def test_a_table_is_cut_to_the_width_at_its_widest_column() -> None:
    head, rule, *rows = table_lines(["id", "text"], [[1, "x" * 100], [22, None]])

    assert head.split() == ["id", "|", "text"]
    assert len(MARGIN + rule) <= WIDTH
    assert [row.rstrip(" ") for row in rows] == ["  1 | " + "x" * 61 + "...", " 22 |"]


def test_a_table_without_rows_says_so() -> None:
    assert list(table_lines(["count"], [])) == [" count", "-------", "(0 rows)"]
