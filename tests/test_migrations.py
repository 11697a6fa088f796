"""
Running the revisions: by `migrate`, by several at once, as SQL, and with alembic from a checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema

from sqlalchemy_brooq import ConfigError, Job, SchemaMismatch, metadata
from sqlalchemy_brooq.migrations import (
    VERSION_TABLE,
    MigrationBlocked,
    MigrationResult,
    database_url,
    migrate,
    migration_sql,
    stamp,
)
from sqlalchemy_brooq.migrations.lock import LOCK_KEY
from sqlalchemy_brooq.model import REVISION
from sqlalchemy_brooq.schema import check_schema
from tests.catalogs import contents, run_sql
from tests.databases import HERE, Admin, fresh_database
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent


@pytest.fixture
def empty_engine(empty_database_url: URL) -> Engine:
    return create_engine(empty_database_url, poolclass=NullPool)


def fill(engine: Engine, jobs: int = 500) -> None:
    run_sql(
        engine, f"INSERT INTO job (topic, idempotency_key) SELECT 'a', n::text FROM generate_series(1, {jobs}) AS n"
    )


@contextmanager
def lock_held(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
        connection.commit()
        yield connection


# What it does.


def test_an_empty_database_gets_the_newest_revision(empty_engine: Engine) -> None:
    result = migrate(empty_engine)

    assert result.changed
    assert (result.before, result.after, result.managed_elsewhere) == (None, REVISION, False)
    assert "\n" not in result.message
    with empty_engine.connect() as connection:
        check_schema(connection)
        assert connection.scalars(text(f"SELECT version_num FROM {VERSION_TABLE}")).all() == [REVISION]


def test_a_current_database_is_left_as_it_is(empty_engine: Engine) -> None:
    migrate(empty_engine)
    fill(empty_engine)
    before = contents(empty_engine)

    again = migrate(empty_engine, to=REVISION)

    assert not again.changed
    assert again.message.startswith("nothing to do")
    assert contents(empty_engine) == before


@pytest.mark.parametrize("jobs", [0, 500])
def test_going_back_to_base_leaves_nothing(empty_engine: Engine, jobs: int) -> None:
    before = contents(empty_engine)
    migrate(empty_engine)
    fill(empty_engine, jobs)

    result = migrate(empty_engine, to="base")

    assert (result.before, result.after) == (REVISION, None)
    assert contents(empty_engine) == before
    assert not migrate(empty_engine, to="base").changed
    assert migrate(empty_engine).changed


def test_a_failing_migration_changes_nothing_and_gives_the_lock_back(empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE TABLE elsewhere (id int); CREATE INDEX job_terminal ON elsewhere (id)")
    before = contents(empty_engine)

    with pytest.raises(ProgrammingError, match="job_terminal"):
        migrate(empty_engine)

    assert contents(empty_engine) == before
    run_sql(empty_engine, "DROP INDEX job_terminal")
    assert migrate(empty_engine, lock_timeout=timedelta(0)).changed


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_engines_isolation_level_does_not_matter(empty_database_url: URL, level: str) -> None:
    engine = create_engine(empty_database_url, isolation_level=level, pool_size=1, max_overflow=0)
    run_sql(engine, "CREATE TABLE elsewhere (id int); CREATE INDEX job_terminal ON elsewhere (id)")
    before = contents(engine)

    with pytest.raises(ProgrammingError, match="job_terminal"):
        migrate(engine)
    assert contents(engine) == before
    run_sql(engine, "DROP INDEX job_terminal")
    assert migrate(engine).changed

    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert ("AUTOCOMMIT" if driver.autocommit else connection.get_isolation_level()) == level
        assert connection.scalar(text(f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {HERE}")) == 0
    engine.dispose()


# What it leaves alone.


def test_a_table_that_another_chain_manages_is_left_alone(empty_engine: Engine) -> None:
    metadata.create_all(empty_engine)
    before = contents(empty_engine)

    for to in ("head", REVISION, "base"):
        result = migrate(empty_engine, to=to)

        assert result.managed_elsewhere
        assert not result.changed
        assert "`alembic upgrade head`" in result.message
    assert contents(empty_engine) == before


@pytest.mark.parametrize("statement", ["CREATE TABLE job AS SELECT 1 AS id", "CREATE VIEW job AS SELECT 1 AS id"])
def test_somebody_elses_job_is_refused_and_kept(empty_engine: Engine, statement: str) -> None:
    run_sql(empty_engine, statement)
    before = contents(empty_engine)

    for to in ("head", "base"):
        with pytest.raises(SchemaMismatch, match="isn't sqlalchemy-brooq's"):
            migrate(empty_engine, to=to)

    assert contents(empty_engine) == before
    with empty_engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM job")).all() == [1]


def test_a_newer_table_is_refused(empty_engine: Engine) -> None:
    migrate(empty_engine)
    run_sql(
        empty_engine,
        f"COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'; UPDATE {VERSION_TABLE} SET version_num = 'brooq9999'",
    )

    with pytest.raises(SchemaMismatch, match="brooq9999"):
        migrate(empty_engine, to="base")

    assert inspect(empty_engine).has_table("job")


@pytest.mark.parametrize(
    ("meddling", "found"),
    [
        ("DROP TABLE job", "there is no table job"),
        ("COMMENT ON TABLE job IS NULL", "has no version mark"),
        ("COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'", "is of revision brooq9999"),
    ],
)
def test_a_table_that_is_not_what_was_recorded_is_refused(empty_engine: Engine, meddling: str, found: str) -> None:
    migrate(empty_engine)
    run_sql(empty_engine, meddling)

    with pytest.raises(SchemaMismatch, match=rf"{VERSION_TABLE} says {REVISION}, but .*{found}"):
        migrate(empty_engine)


@pytest.mark.parametrize("to", ["heads", "+1", "-1", "brooq", "brooq0000", "", "BASE"])
def test_an_unknown_revision_is_refused_before_any_connection(to: str) -> None:
    for run in (lambda: migrate("postgresql://nobody@nowhere.invalid/x", to=to), lambda: migration_sql(to)):
        with pytest.raises(ConfigError, match="is no revision of this version: head, brooq0001 or base"):
            run()


# Recording what something else made.


def test_a_stamped_table_is_migrates_from_then_on(empty_engine: Engine) -> None:
    before = contents(empty_engine)
    metadata.create_all(empty_engine)

    result = stamp(empty_engine)

    assert (result.before, result.after, result.changed) == (REVISION, REVISION, False)
    assert result.message.startswith(f"recorded {REVISION} in {VERSION_TABLE}")
    assert "\n" not in result.message
    assert migrate(empty_engine).message.startswith("nothing to do")
    assert migrate(empty_engine, to="base").changed
    assert contents(empty_engine) == before


def test_a_stamp_of_base_forgets_the_table_and_leaves_it(empty_engine: Engine) -> None:
    migrate(empty_engine)
    fill(empty_engine, 3)

    result = stamp(empty_engine, to="base")

    assert result.message.startswith(f"{VERSION_TABLE} is gone")
    assert inspect(empty_engine).get_table_names() == ["job"]
    assert migrate(empty_engine).managed_elsewhere
    assert not stamp(empty_engine, to="base").changed
    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job")) == 3


def test_a_stamp_mends_a_record_that_is_not_true(empty_engine: Engine) -> None:
    migrate(empty_engine)
    run_sql(empty_engine, f"UPDATE {VERSION_TABLE} SET version_num = 'brooq0000'")

    stamp(empty_engine, to=REVISION)

    assert migrate(empty_engine).message.startswith("nothing to do")


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("SELECT 1", "there is no table job in the schema 'public'"),
        ("CREATE TABLE job (id int)", "has no version mark"),
        ("CREATE TABLE job (id int); COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'", "revision brooq9999"),
    ],
)
def test_a_stamp_records_nothing_but_a_table_that_this_version_knows(
    empty_engine: Engine, statement: str, found: str
) -> None:
    run_sql(empty_engine, statement)

    for to in ("head", REVISION):
        with pytest.raises(SchemaMismatch, match=f"{found}.*: there is nothing to record"):
            stamp(empty_engine, to=to)

    assert not inspect(empty_engine).has_table(VERSION_TABLE)


def test_a_stamp_goes_where_migrate_goes(empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE SCHEMA tenant")
    elsewhere = empty_engine.execution_options(schema_translate_map={None: "tenant"})
    metadata.create_all(elsewhere)

    stamp(elsewhere)

    assert sorted(inspect(empty_engine).get_table_names(schema="tenant")) == [VERSION_TABLE, "job"]


# Where it goes.


@pytest.mark.parametrize("name", ["tenant", "Tenant-1", "o'brien", 'te"nant', "select", "100%", "a b:c"])
def test_a_translated_schema_gets_a_table_of_its_own(empty_engine: Engine, name: str) -> None:
    with empty_engine.begin() as connection:
        connection.execute(CreateSchema(name))
    before = contents(empty_engine)
    elsewhere = empty_engine.execution_options(schema_translate_map={None: name})

    assert migrate(elsewhere).changed
    assert migrate(elsewhere).message.startswith("nothing to do")

    assert sorted(inspect(empty_engine).get_table_names(schema=name)) == sorted([VERSION_TABLE, "job"])
    assert inspect(empty_engine).get_table_names() == []
    with elsewhere.connect() as connection:
        check_schema(connection)
        assert connection.scalar(text("SELECT reloptions FROM pg_class WHERE relname = 'job'"))
    assert migrate(elsewhere, to="base").changed
    assert contents(empty_engine) == before


def test_the_first_schema_of_the_search_path_gets_a_table_of_its_own(empty_engine: Engine) -> None:
    migrate(empty_engine)
    run_sql(empty_engine, "CREATE SCHEMA tenant")
    url = empty_engine.url.update_query_dict({"options": "-c search_path=tenant,public"})

    assert migrate(url).changed
    assert migrate(url).message.startswith("nothing to do")

    assert sorted(inspect(empty_engine).get_table_names(schema="tenant")) == sorted([VERSION_TABLE, "job"])
    assert migrate(url, to="base").changed
    assert sorted(inspect(empty_engine).get_table_names(schema="public")) == sorted([VERSION_TABLE, "job"])


def test_a_search_path_that_leads_nowhere_is_refused(empty_engine: Engine) -> None:
    url = empty_engine.url.update_query_dict({"options": "-c search_path=nowhere"})

    with pytest.raises(SchemaMismatch, match="search_path"):
        migrate(url)


def test_a_password_may_have_any_character(empty_engine: Engine) -> None:
    password = "p@ss%w:rd/%(x)s%%"  # noqa: S105 - made up
    given = empty_engine.url.set(password=password, drivername="postgres")
    arrived: list[Any] = []

    def connecting(_dialect: object, _record: object, _args: object, parameters: dict[str, Any]) -> None:
        arrived.append(parameters.get("password"))

    event.listen(Engine, "do_connect", connecting)
    try:
        assert migrate(given.render_as_string(hide_password=False)).changed
        assert not migrate(given).changed
    finally:
        event.remove(Engine, "do_connect", connecting)

    assert arrived == [password, password]


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_url_that_names_no_driver_means_psycopg(scheme: str) -> None:
    assert database_url(f"{scheme}://u@h/d").drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("database", "reason"),
    [
        ("mysql://u:geheim@h/d", "mysql"),
        ("sqlite://", "sqlite"),
        ("geheim", "can't be read"),
        ("postgresql://u:geheim@h:port/d", "can't be read"),
        ("postgresql+asyncpg://u:geheim@h/d", "asynchronous"),
        (create_engine("sqlite://"), "sqlite"),
        (create_async_engine("postgresql+psycopg://u:geheim@h/d"), "AsyncEngine"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_postgresql_is_refused_without_showing_the_password(database: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        migrate(database)

    assert "geheim" not in str(raised.value)


# Several at once.

MIGRATING = "import sys; from sqlalchemy_brooq.migrations import migrate; print(migrate(sys.argv[1]).changed)"


def test_of_several_processes_one_migrates_and_all_succeed(empty_engine: Engine, admin: Admin) -> None:
    url = empty_engine.url.update_query_dict({"application_name": "migrating"}).render_as_string(hide_password=False)
    sessions = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'migrating' AND datname = %s"

    def all_wait() -> bool:
        row = admin.execute(sessions, [empty_engine.url.database]).fetchone()
        return row is not None and row["n"] == len(processes)

    with lock_held(empty_engine):
        processes = [
            subprocess.Popen([sys.executable, "-c", MIGRATING, url], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        eventually(all_wait, timeout=60, message="the processes never connected")
        assert not inspect(empty_engine).has_table("job")
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]

    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(answers) == ["False"] * 3 + ["True"]


def test_who_waits_too_long_is_told_who_holds_the_lock(empty_engine: Engine) -> None:
    before = contents(empty_engine)
    with lock_held(empty_engine) as holder:
        pid = holder.scalar(text("SELECT pg_backend_pid()"))
        holder.commit()

        with pytest.raises(MigrationBlocked, match=rf"server process {pid}\b.* within 200ms") as raised:
            migrate(empty_engine, lock_timeout=timedelta(milliseconds=200))

    assert "\n" not in str(raised.value)
    assert contents(empty_engine) == before
    assert migrate(empty_engine).changed


@contextmanager
def jobs_in_use(engine: Engine) -> Iterator[Connection]:
    """
    Hold a row of the table in an open transaction.
    """
    with engine.connect() as connection:
        connection.execute(text("SELECT FROM job LIMIT 1 FOR UPDATE"))
        yield connection


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_table_in_use_is_given_up_after_a_while_and_its_users_are_named(empty_database_url: URL, driver: str) -> None:
    url = empty_database_url.set(drivername=f"postgresql+{driver}")
    empty_engine = create_engine(url, poolclass=NullPool)
    migrate(empty_engine)
    fill(empty_engine, 3)
    before = contents(empty_engine)

    with jobs_in_use(empty_engine) as user:
        pid = user.scalar(text("SELECT pg_backend_pid()"))
        with pytest.raises(MigrationBlocked, match=rf"in use \(server processes: {pid}\).* within 200ms") as raised:
            migrate(empty_engine, to="base", lock_timeout=timedelta(milliseconds=200))

    assert "\n" not in str(raised.value)
    assert contents(empty_engine) == before
    assert migrate(empty_engine, to="base", lock_timeout=timedelta(0)).changed


def test_a_table_in_use_is_waited_for_and_others_get_on_meanwhile(empty_engine: Engine, admin: Admin) -> None:
    migrate(empty_engine)
    fill(empty_engine, 3)

    def attempts() -> int:
        row = admin.execute(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s",
            [empty_engine.url.database],
        ).fetchone()
        assert row is not None
        return int(row["n"])

    with ThreadPoolExecutor(1) as pool, jobs_in_use(empty_engine) as user:
        migration = pool.submit(migrate, empty_engine, to="base")
        eventually(attempts)
        # Queues up behind the migration, which gives way.
        run_sql(empty_engine, "INSERT INTO job (topic) VALUES ('a')")
        assert not migration.done()
        user.rollback()
        assert migration.result(timeout=30).changed


def test_threads_that_migrate_two_databases_do_not_mix_them_up(
    empty_engine: Engine, admin: Admin, server_url: URL
) -> None:
    def second_has_its_lock() -> bool:
        locks = "SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database"
        answer = admin.execute(f"{locks} WHERE locktype = 'advisory' AND datname = %s", [other_url.database])
        return second.done() or answer.fetchone() is not None

    with fresh_database(admin, server_url, template="template1") as other_url, ThreadPoolExecutor(2) as pool:
        other = create_engine(other_url, poolclass=NullPool)
        with empty_engine.connect() as blocker:
            # Nobody sees this table yet, but nobody can make another of its name either.
            blocker.exec_driver_sql("CREATE TABLE job (id int)")
            first = pool.submit(migrate, empty_engine)
            eventually(lambda: blocked(admin, empty_engine))
            second = pool.submit(migrate, other)
            eventually(second_has_its_lock)
            blocker.rollback()

        assert first.result(timeout=30).changed
        assert second.result(timeout=30).changed
        for engine in (empty_engine, other):
            with engine.connect() as connection:
                check_schema(connection)


def blocked(admin: Admin, engine: Engine) -> bool:
    waiting = (
        "SELECT FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock' AND query ~ 'CREATE TABLE job'"
    )
    return admin.execute(waiting, [engine.url.database]).fetchone() is not None


def test_a_lost_connection_ends_the_migration_and_its_lock(empty_engine: Engine, admin: Admin) -> None:
    url = empty_engine.url.update_query_dict({"application_name": "to be ended"})
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate(url)
        except DBAPIError as error:
            failures.append(error)

    with empty_engine.connect() as blocker:
        blocker.exec_driver_sql("CREATE TABLE job (id int)")
        thread = threading.Thread(target=run)
        thread.start()
        eventually(lambda: blocked(admin, empty_engine))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'to be ended'")
        thread.join(timeout=30)

    assert not thread.is_alive()
    assert len(failures) == 1
    assert migrate(empty_engine).changed


# As SQL.


def test_migrate_goes_on_from_where_the_sql_ended(empty_engine: Engine) -> None:
    before = contents(empty_engine)

    run_sql(empty_engine, migration_sql())

    assert migrate(empty_engine) == MigrationResult(REVISION, REVISION, message=migrate(empty_engine).message)
    run_sql(empty_engine, migration_sql("base"))
    assert contents(empty_engine) == before


# From a checkout.


def alembic(*arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    if url is not None:
        environment["DATABASE_URL"] = url
    command = [sys.executable, "-W", "error", "-m", "alembic", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_alembic_upgrades_checks_and_downgrades_from_a_checkout(empty_engine: Engine) -> None:
    before = contents(empty_engine)
    url = empty_engine.url.set(drivername="postgres").render_as_string(hide_password=False)

    upgraded = alembic("upgrade", "head", url=url)
    assert upgraded.returncode == 0, upgraded.stderr
    fill(empty_engine)
    run_sql(empty_engine, "CREATE TABLE elsewhere (id int)")
    checked = alembic("check", url=url)
    assert checked.returncode == 0, checked.stderr
    assert "No new upgrade operations detected" in checked.stdout
    assert migrate(empty_engine).managed_elsewhere
    run_sql(empty_engine, "DROP TABLE elsewhere")
    downgraded = alembic("downgrade", "base", url=url)
    assert downgraded.returncode == 0, downgraded.stderr

    run_sql(empty_engine, "DROP TABLE alembic_version")
    assert contents(empty_engine) == before


def test_alembic_sees_a_table_that_differs_from_the_model(empty_engine: Engine) -> None:
    url = empty_engine.url.render_as_string(hide_password=False)
    alembic("upgrade", "head", url=url)
    run_sql(empty_engine, "ALTER TABLE job ALTER attempts SET DEFAULT 1")

    checked = alembic("check", url=url)

    assert checked.returncode != 0
    assert "attempts" in checked.stderr + checked.stdout


@pytest.mark.parametrize("url", [None, ""])
def test_alembic_says_in_one_line_that_it_needs_a_url(url: str | None) -> None:
    answer = alembic("upgrade", "head", url=url)

    assert answer.returncode != 0
    assert "DATABASE_URL is not set" in answer.stdout + answer.stderr
    assert len((answer.stdout + answer.stderr).strip().splitlines()) == 1


def test_alembic_refuses_another_dialect_in_one_line() -> None:
    answer = alembic("upgrade", "head", url="mysql://u:geheim@h/d")

    assert answer.returncode != 0
    assert "DATABASE_URL is refused" in answer.stdout + answer.stderr
    assert "geheim" not in answer.stdout + answer.stderr
    assert len((answer.stdout + answer.stderr).strip().splitlines()) == 1


def test_alembic_writes_sql_without_a_database() -> None:
    answer = alembic("upgrade", "head", "--sql")

    assert answer.returncode == 0, answer.stderr
    assert "CREATE TABLE job" in answer.stdout


def test_our_own_environment_names_the_ways_in_when_alembic_is_pointed_at_it(empty_engine: Engine) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "sqlalchemy_brooq:migrations")

    with pytest.raises(CommandError, match="version_locations"):
        command.upgrade(config, "head")


# Imports.


@pytest.mark.parametrize(
    "program",
    [
        "import alembic, sqlalchemy_brooq.migrations",
        "import sqlalchemy_brooq.migrations, alembic",
        "import sqlalchemy_brooq.migrations, alembic.command, alembic.config",
        "import alembic.command, sqlalchemy_brooq.migrations",
        "import sys, sqlalchemy_brooq, sqlalchemy_brooq.migrations; assert 'alembic' not in sys.modules",
        "import sys, sqlalchemy_brooq.migrations; assert not {'psycopg', 'psycopg2', 'asyncpg'} & set(sys.modules)",
    ],
)
def test_the_library_and_alembic_are_imported_in_any_order(program: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    assert answer.returncode == 0, answer.stderr


def test_the_models_job_can_be_stored_in_a_migrated_table(empty_engine: Engine) -> None:
    migrate(empty_engine)
    with Session(empty_engine) as session:
        job = Job("email.send", {"to": "you"})
        session.add(job)
        session.commit()

        assert session.get_one(Job, job.id).state == "pending"
