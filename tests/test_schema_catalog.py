"""
What the database's catalog says: the model and the revisions build the same table, and it keeps its own rules.
"""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from uuid import RFC_4122, UUID

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, MetaData, NullPool, create_engine, text
from sqlalchemy.exc import IntegrityError

import sqlalchemy_brooq
from sqlalchemy_brooq import SchemaMismatch, metadata, schema
from sqlalchemy_brooq.migrations import migrate, migration_sql
from sqlalchemy_brooq.migrations.chain import chain_config
from sqlalchemy_brooq.model import REVISION, VERSION_MARK
from sqlalchemy_brooq.schema import REVISIONS, Verdict, check_schema, location, schema_state
from tests.catalogs import catalog, models_catalog
from tests.servers import ROOT

CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}


@pytest.fixture
def empty_engine(empty_database_url: URL) -> Engine:
    return create_engine(empty_database_url, poolclass=NullPool)


@pytest.fixture
def migrated_engine(empty_engine: Engine) -> Engine:
    migrate(empty_engine)
    return empty_engine


@pytest.fixture
def connection(migrated_engine: Engine) -> Iterator[Connection]:
    with migrated_engine.connect() as connection:
        yield connection


def revision_module() -> ModuleType:
    script = ScriptDirectory.from_config(chain_config()).get_revision(REVISION)
    spec = importlib.util.spec_from_file_location("the_revision", script.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_migrated_database_has_the_models_catalog(empty_engine: Engine) -> None:
    expected = models_catalog(empty_engine)

    migrate(empty_engine)

    with empty_engine.connect() as connection:
        assert catalog(connection) == expected
    assert len(expected["columns"]) == len(metadata.tables["job"].columns)
    assert len(expected["indexes"]) == len(metadata.tables["job"].indexes) + 1


def test_the_offline_sql_builds_the_models_catalog(empty_engine: Engine) -> None:
    expected = models_catalog(empty_engine)

    with empty_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(migration_sql())

    with empty_engine.connect() as connection:
        assert catalog(connection) == expected


def test_a_consumers_naming_convention_renames_nothing(empty_engine: Engine) -> None:
    expected = models_catalog(empty_engine)
    options = {"target_metadata": MetaData(naming_convention=CONVENTION)}

    with empty_engine.begin() as connection, Operations.context(MigrationContext.configure(connection, opts=options)):
        revision_module().upgrade()

    with empty_engine.connect() as connection:
        assert catalog(connection) == expected


@pytest.mark.parametrize("compare_server_default", [False, True])
def test_alembic_finds_nothing_to_change(connection: Connection, compare_server_default: bool) -> None:
    options = {
        "compare_server_default": compare_server_default,
        "include_name": lambda name, kind, _parents: kind != "table" or name == "job",
    }

    assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_the_server_prints_every_default_as_the_model_writes_it(connection: Connection) -> None:
    printed = {row[1]: row[7] for row in catalog(connection)["columns"] if row[7] is not None}
    written = {
        column.name: str(column.server_default.arg)  # type: ignore[attr-defined] # every one is a DefaultClause
        for column in metadata.tables["job"].columns
        if column.server_default is not None
    }

    assert printed == written


def test_the_shipped_revisions_are_those_that_the_version_check_knows() -> None:
    shipped = [script.revision for script in ScriptDirectory.from_config(chain_config()).walk_revisions()]

    assert tuple(reversed(shipped)) == REVISIONS
    assert REVISIONS[-1] == REVISION
    assert metadata.tables["job"].comment == VERSION_MARK + REVISION


def test_each_revision_lies_where_consumers_are_told_to_look_for_it() -> None:
    package = Path(sqlalchemy_brooq.__file__).parent
    checkout = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["alembic"]["version_locations"]

    assert checkout == [location(revision) for revision in REVISIONS]
    for script in ScriptDirectory.from_config(chain_config()).walk_revisions():
        folder = location(script.revision).removeprefix("sqlalchemy_brooq:")
        assert Path(script.path).parent == package / folder


def test_plain_sql_needs_only_a_topic_and_a_payload(connection: Connection) -> None:
    statement = text("""INSERT INTO job (topic, payload) VALUES ('a.b', '{"n": 1}') RETURNING *""")

    row = connection.execute(statement).mappings().one()

    now = connection.scalar(text("SELECT now()"))
    assert {name: value for name, value in row.items() if value is not None and name != "id"} == {
        "topic": "a.b",
        "payload": {"n": 1},
        "priority": 0,
        "state": "pending",
        "attempts": 0,
        "requeues": 0,
        "available_at": now,
        "created_at": now,
        "updated_at": now,
    }


def test_plain_sql_gets_ids_of_version_7_that_rise_with_the_clock(connection: Connection) -> None:
    insert = text("INSERT INTO job (topic, payload) VALUES ('a', '{}') RETURNING id")
    next_millisecond = text("SELECT pg_sleep(0.001), clock_timestamp()")

    ids: list[UUID] = []
    before = connection.execute(next_millisecond).one()[1]
    for _ in range(20):
        ids.append(connection.scalars(insert).one())
        after = connection.execute(next_millisecond).one()[1]

    assert {(made.version, made.variant) for made in ids} == {(7, RFC_4122)}
    assert ids == sorted(set(ids))
    assert before - timedelta(milliseconds=1) <= moment(ids[0]) <= moment(ids[-1]) <= after


def moment(made: UUID) -> datetime:
    return datetime.fromtimestamp((made.int >> 80) / 1000, UTC)


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("state", "'cancelled'", "job_state"),
        ("state", "'processing'", "job_lease"),
        ("priority", "3", "job_priority"),
        ("priority", "-3", "job_priority"),
    ],
)
def test_the_table_refuses(connection: Connection, column: str, value: str, rule: str) -> None:
    with pytest.raises(IntegrityError, match=rule):
        connection.execute(text(f"INSERT INTO job (topic, {column}) VALUES ('a', {value})"))


def test_a_key_is_taken_once_a_topic_and_no_key_never_is(connection: Connection) -> None:
    insert = text("INSERT INTO job (topic, idempotency_key) VALUES (:topic, :key)")
    for topic, key in [("a", "k"), ("b", "k"), ("a", None), ("a", None), ("a", " ")]:
        connection.execute(insert, {"topic": topic, "key": key})

    with pytest.raises(IntegrityError, match="job_idempotency"):
        connection.execute(insert, {"topic": "a", "key": "k"})


def test_a_migrated_schema_is_current(connection: Connection) -> None:
    check_schema(connection)

    assert schema_state(connection).verdict is Verdict.CURRENT
    assert schema_state(connection).revision == REVISION


def test_a_missing_table_is_one_line_with_the_commands(empty_engine: Engine) -> None:
    with empty_engine.connect() as connection, pytest.raises(SchemaMismatch) as raised:
        check_schema(connection)

    assert_one_line(raised.value, "missing", REVISION)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE job (id int)",
        "CREATE VIEW job AS SELECT 1",
        "CREATE TABLE elsewhere (id int); CREATE SEQUENCE job",
    ],
)
def test_somebody_elses_job_is_called_foreign(empty_engine: Engine, statement: str) -> None:
    with empty_engine.connect() as connection:
        connection.exec_driver_sql(statement)
        assert schema_state(connection).verdict is Verdict.FOREIGN
        with pytest.raises(SchemaMismatch) as raised:
            check_schema(connection)

    assert_one_line(raised.value, "isn't sqlalchemy-brooq's", REVISION)


def test_a_commented_job_of_somebody_else_is_foreign(empty_engine: Engine) -> None:
    with empty_engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE job (id int); COMMENT ON TABLE job IS 'the jobs of our staff'")

        assert schema_state(connection).verdict is Verdict.FOREIGN


def test_an_older_revision_is_told_apart(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "REVISION", "brooq0002")
    monkeypatch.setattr(schema, "REVISIONS", ("brooq0001", "brooq0002"))

    with pytest.raises(SchemaMismatch) as raised:
        check_schema(connection)

    assert schema_state(connection).verdict is Verdict.OLDER
    assert_one_line(raised.value, "brooq0001", "brooq0002")


def test_a_revision_that_this_version_does_not_know_is_newer(connection: Connection) -> None:
    connection.exec_driver_sql("COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'")

    with pytest.raises(SchemaMismatch) as raised:
        check_schema(connection)

    assert schema_state(connection).verdict is Verdict.NEWER
    assert "`alembic downgrade brooq0001`" in str(raised.value)
    assert "`brooq-worker migrate --to brooq0001`" in str(raised.value)
    assert "brooq9999" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_schema_that_is_asked_for_is_the_one_that_is_judged(connection: Connection) -> None:
    connection.exec_driver_sql("""CREATE SCHEMA "o'brien" CREATE TABLE job (id int)""")

    assert schema_state(connection, "o'brien").verdict is Verdict.FOREIGN
    assert schema_state(connection, "nowhere").verdict is Verdict.MISSING
    assert schema_state(connection, "public").verdict is Verdict.CURRENT
    with pytest.raises(SchemaMismatch, match="in the schema 'nowhere'"):
        check_schema(connection, "nowhere")


def test_without_a_schema_the_translated_one_is_judged(migrated_engine: Engine) -> None:
    elsewhere = migrated_engine.execution_options(schema_translate_map={None: "tenant"})

    with elsewhere.connect() as connection:
        assert schema_state(connection).verdict is Verdict.MISSING


def test_without_a_schema_the_one_that_the_search_path_finds_is_judged(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE SCHEMA tenant CREATE TABLE job (id int)")

    connection.exec_driver_sql("SET search_path = tenant, public")
    assert schema_state(connection).verdict is Verdict.FOREIGN
    connection.exec_driver_sql("SET search_path = nowhere, public")
    assert schema_state(connection).verdict is Verdict.CURRENT


def assert_one_line(error: SchemaMismatch, *words: str) -> None:
    message = str(error)
    assert "\n" not in message
    for word in (*words, "`alembic upgrade head`", "`brooq-worker migrate`"):
        assert word in message
