from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from secrets import token_hex

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, Engine, NullPool, create_engine, inspect, text

from sqlalchemy_brooq.cli.progress import index_progress
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations.lock import LOCK_KEY
from sqlalchemy_brooq.model import REVISION, VERSION_MARK
from tests.catalogs import run_sql
from tests.commands import COMMAND, Answer, brooq_worker, free_port, shown
from tests.waiting import eventually

SECRET = "S3cr%40t!%25"  # noqa: S105 - a secret to look for


def migrate(*arguments: str, cwd: Path, url: URL) -> Answer:
    return brooq_worker("migrate", *arguments, cwd=cwd, DATABASE_URL=shown(url))


def execute(url: URL, statements: str) -> None:
    with psycopg.connect(shown(url.set(drivername="postgresql")), autocommit=True) as connection:
        connection.execute(statements)


def tables(url: URL) -> set[str]:
    return set(inspect(create_engine(url, poolclass=NullPool)).get_table_names())


def test_migrate_makes_the_table_once_and_says_what_it_did(tmp_path: Path, empty_database_url: URL) -> None:
    first = migrate(cwd=tmp_path, url=empty_database_url)
    again = migrate(cwd=tmp_path, url=empty_database_url)

    assert (first.code, first.err) == (0, "")
    assert first.out == f"migrated the schema 'public' from base to {REVISION}\n"
    assert tables(empty_database_url) == {"job", "brooq_alembic_version"}
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("nothing to do: ")
    assert len(again.out.splitlines()) == 1


def test_migrate_to_base_takes_everything_away(tmp_path: Path, empty_database_url: URL) -> None:
    migrate("--to", REVISION, cwd=tmp_path, url=empty_database_url)

    answer = migrate("--to", "base", cwd=tmp_path, url=empty_database_url)

    assert (answer.code, answer.err) == (0, "")
    assert tables(empty_database_url) == set()


def test_the_database_can_be_an_option_or_stand_in_a_file_or_in_dotenv(tmp_path: Path, empty_database_url: URL) -> None:
    address = shown(empty_database_url.set(drivername="postgres"))
    (tmp_path / "address").write_text(f"{address}\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text(f"DATABASE_URL='{address}'\n")

    by_option = brooq_worker("migrate", "--database-url", address, cwd=tmp_path, DATABASE_URL="mysql://")
    by_file = brooq_worker("migrate", cwd=tmp_path, DATABASE_URL_FILE=str(tmp_path / "address"))
    by_dotenv = brooq_worker("migrate", cwd=tmp_path / "project")

    assert [answer.code for answer in (by_option, by_file, by_dotenv)] == [0, 0, 0]
    assert by_option.out.startswith("migrated ")
    assert by_file.out.startswith("nothing to do: ")
    assert by_dotenv.out.startswith("nothing to do: ")


def test_the_sql_makes_what_migrate_makes_and_needs_no_database(tmp_path: Path, empty_database_url: URL) -> None:
    answer = brooq_worker("migrate", "--sql", cwd=tmp_path)

    assert (answer.code, answer.err) == (0, "")
    execute(empty_database_url, answer.out)
    assert migrate(cwd=tmp_path, url=empty_database_url).out.startswith("nothing to do: ")


def test_sql_into_a_pipe_that_nobody_reads_ends_without_a_traceback(tmp_path: Path) -> None:
    answer = brooq_worker(
        "-c",
        'set -o pipefail; "$0" -m sqlalchemy_brooq migrate --sql | true',
        COMMAND[0],
        cwd=tmp_path,
        command=("bash",),
    )

    assert answer.err == ""


def test_stamp_makes_a_table_of_another_chains_its_own_and_gives_it_away_again(
    tmp_path: Path, database_url: URL
) -> None:
    execute(database_url, "DROP TABLE IF EXISTS brooq_alembic_version")

    taken = migrate("--stamp", cwd=tmp_path, url=database_url)
    current = migrate(cwd=tmp_path, url=database_url)
    given = migrate("--stamp", "--to", "base", cwd=tmp_path, url=database_url)

    assert [answer.code for answer in (taken, current, given)] == [0, 0, 0]
    assert taken.out.startswith(f"recorded {REVISION} in brooq_alembic_version: ")
    assert current.out.startswith("nothing to do: ")
    assert given.out.startswith("brooq_alembic_version is gone ")
    assert tables(database_url) == {"job"}


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def test_an_index_that_a_migration_builds_is_shown_as_it_grows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sqlalchemy_brooq.cli.progress.LOOK", 0.02)
    build = "CREATE INDEX CONCURRENTLY mine ON job (created_at)"

    with engine.connect() as producer, ThreadPoolExecutor(1) as pool:
        producer.execute(text("INSERT INTO job (topic) VALUES ('t')"))
        with index_progress(engine):
            building = pool.submit(run_sql, engine, build)
            eventually(lambda: "building an index (waiting for writers before build)" in screen.getvalue())
            producer.commit()
            building.result()


def test_nothing_is_shown_where_nobody_looks(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    with index_progress(engine):
        assert [thread.name for thread in threading.enumerate() if "_watch" in thread.name] == []
    assert capsys.readouterr().err == ""


# -- what a user can do wrong


def test_no_database_is_wrong_usage(tmp_path: Path) -> None:
    answer = brooq_worker("migrate", cwd=tmp_path)

    assert answer.code == 2
    assert (
        answer.error == "there is no database to work on: give --database-url, or set DATABASE_URL or DATABASE_URL_FILE"
    )


@pytest.mark.parametrize("arguments", [("--to", "brooq9999"), ("--sql", "--to", "brooq9999")])
def test_an_unknown_revision_is_wrong_usage(tmp_path: Path, server_url: URL, arguments: tuple[str, ...]) -> None:
    answer = migrate(*arguments, cwd=tmp_path, url=server_url)

    assert answer.code == 2
    assert answer.error == f"'brooq9999' is no revision of this version: head, {REVISION} or base"


@pytest.mark.parametrize("unwanted", [("--database-url", "postgresql://db/shop"), ("--stamp",), ("--schema", "queue")])
def test_sql_that_would_need_a_database_is_wrong_usage(tmp_path: Path, unwanted: tuple[str, ...]) -> None:
    answer = brooq_worker("migrate", "--sql", *unwanted, cwd=tmp_path)

    assert answer.code == 2
    assert f"leave out {unwanted[0]}" in answer.err


def test_a_lock_timeout_without_a_unit_is_wrong_usage(tmp_path: Path, server_url: URL) -> None:
    answer = migrate("--lock-timeout", "3", cwd=tmp_path, url=server_url)

    assert answer.code == 2
    assert answer.error.startswith("--lock-timeout: '3' has a number with no unit")


@pytest.mark.parametrize(
    "address",
    [f"mysql://shop:{SECRET}@db/shop", f"postgresql//shop:{SECRET}@db", f"postgres://shop:{SECRET}@db:x/shop"],
)
def test_a_wrong_address_is_one_error_without_its_password(tmp_path: Path, address: str) -> None:
    answer = brooq_worker("migrate", cwd=tmp_path, DATABASE_URL=address)

    assert answer.code == 2
    assert answer.error.startswith("DATABASE_URL: the database URL ")
    assert "S3cr" not in answer.err


# -- what can fail


def test_a_refused_connection_is_one_error_without_the_password(tmp_path: Path) -> None:
    answer = brooq_worker("migrate", cwd=tmp_path, DATABASE_URL=f"postgresql://shop:{SECRET}@127.0.0.1:1/shop")

    assert answer.code == 1
    assert "refused" in answer.error
    assert "S3cr" not in answer.err


@pytest.fixture
def guarded_server() -> Iterator[URL]:
    """
    A server that asks for a password over TCP.
    """
    port = free_port()
    with LocalPostgres(durable=False, listen_addresses="127.0.0.1", port=port) as server:
        url = server.url()
        with psycopg.connect(shown(url.set(drivername="postgresql")), autocommit=True) as connection:
            rules = connection.execute("SHOW hba_file").fetchone()
            assert rules is not None
            rule = "SELECT 'host all all all scram-sha-256' UNION ALL SELECT 'local all all trust'"
            connection.execute(sql.SQL("COPY ({}) TO {}").format(sql.SQL(rule), sql.Literal(rules[0])))
            connection.execute("CREATE ROLE shop LOGIN PASSWORD 'right'")
            connection.execute("SELECT pg_reload_conf()")
        yield URL.create("postgresql", "shop", "S3cr@t!%", "127.0.0.1", port, "postgres")


def test_a_wrong_password_is_one_error_that_does_not_show_it(tmp_path: Path, guarded_server: URL) -> None:
    answer = migrate(cwd=tmp_path, url=guarded_server)

    assert answer.code == 1
    assert 'password authentication failed for user "shop"' in answer.error
    assert "S3cr" not in answer.err


def test_a_database_that_does_not_exist_is_one_error(tmp_path: Path, server_url: URL) -> None:
    answer = migrate(cwd=tmp_path, url=server_url.set(database="brooq_nowhere"))

    assert answer.code == 1
    assert 'database "brooq_nowhere" does not exist' in answer.error


def test_a_table_of_somebody_elses_is_left_alone(tmp_path: Path, empty_database_url: URL) -> None:
    execute(empty_database_url, "CREATE TABLE job (mine int)")

    answer = migrate(cwd=tmp_path, url=empty_database_url)

    assert answer.code == 1
    assert "isn't sqlalchemy-brooq's" in answer.error
    assert tables(empty_database_url) == {"job"}


def test_a_table_of_a_newer_version_is_left_alone(tmp_path: Path, database_url: URL) -> None:
    execute(database_url, f"COMMENT ON TABLE job IS '{VERSION_MARK}brooq9999'")

    answer = migrate(cwd=tmp_path, url=database_url)

    assert answer.code == 1
    assert "brooq9999" in answer.error


def test_a_table_that_another_chain_manages_is_left_alone_and_that_is_no_failure(
    tmp_path: Path, database_url: URL
) -> None:
    execute(database_url, "DROP TABLE IF EXISTS brooq_alembic_version")

    answer = migrate(cwd=tmp_path, url=database_url)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("nothing was changed: ")
    assert len(answer.out.splitlines()) == 1


def test_another_migration_under_way_is_waited_for_and_then_reported(tmp_path: Path, empty_database_url: URL) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})

        answer = migrate("--lock-timeout", "200ms", cwd=tmp_path, url=empty_database_url)

    assert answer.code == 1
    assert answer.error.startswith("another migration of this database is under way")


def test_a_role_that_may_not_make_tables_is_told_so(tmp_path: Path, empty_database_url: URL) -> None:
    role = f"brooq_test_{token_hex(6)}"  # roles are the whole server's
    execute(empty_database_url, f"CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        answer = migrate(cwd=tmp_path, url=empty_database_url.set(username=role))
    finally:
        execute(empty_database_url, f"DROP ROLE {role}")

    assert answer.code == 1
    assert answer.error == "database error: permission denied for schema public"
