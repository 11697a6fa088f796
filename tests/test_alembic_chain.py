"""
The merged chain in every kind of environment: however it is run, it makes the same table, and takes all of it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from alembic.util import CommandError
from sqlalchemy import URL, Engine, MetaData, NullPool, create_engine, inspect, text
from sqlalchemy.schema import CreateSchema

from sqlalchemy_brooq import metadata
from sqlalchemy_brooq.migrations import migrate, migration_sql
from sqlalchemy_brooq.schema import check_schema, drift
from tests.catalogs import catalog, contents, models_catalog, run_sql
from tests.chains import CUSTOMER, EMPTY, MERGE, ORDER, Chain
from tests.psql import psql

REVISIONS = (CUSTOMER, MERGE, ORDER)
CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}


@pytest.fixture
def empty_engine(empty_database_url: URL) -> Engine:
    return create_engine(empty_database_url, poolclass=NullPool)


def tables(engine: Engine, schema: str | None = None) -> set[str]:
    return set(inspect(engine).get_table_names(schema=schema))


def fill(engine: Engine, jobs: int) -> None:
    run_sql(
        engine, f"INSERT INTO job (topic, idempotency_key) SELECT 'a', n::text FROM generate_series(1, {jobs}) AS n"
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transaction_per_migration": True},
        {"target_metadata": MetaData(naming_convention=CONVENTION)},
        {"target_metadata": [metadata, MetaData(naming_convention=CONVENTION)], "compare_server_default": True},
    ],
    ids=["one transaction", "a transaction each", "naming convention", "our metadata"],
)
def test_the_merged_chain_makes_the_models_table_and_takes_it_back(
    tmp_path: Path, empty_engine: Engine, options: dict[str, Any]
) -> None:
    expected = models_catalog(empty_engine)
    before = contents(empty_engine)
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS, options=options)

    chain.upgrade()

    with empty_engine.connect() as connection:
        assert catalog(connection) == expected
        assert drift(connection) == []
    assert tables(empty_engine) == {"alembic_version", "customer", "job", "order_"}
    fill(empty_engine, 500)
    chain.downgrade()
    run_sql(empty_engine, "DROP TABLE alembic_version")
    assert contents(empty_engine) == before


def test_a_connection_handed_over_in_a_transaction_decides_over_it(tmp_path: Path, empty_engine: Engine) -> None:
    with empty_engine.connect() as connection, connection.begin() as transaction:
        Chain(tmp_path / "undone", connection, *REVISIONS).upgrade()
        check_schema(connection)
        transaction.rollback()
    assert tables(empty_engine) == set()

    with empty_engine.begin() as connection:
        chain = Chain(tmp_path / "done", connection, *REVISIONS)
        chain.upgrade()
        chain.downgrade("merge")
    assert tables(empty_engine) == {"alembic_version", "customer", "job"}


def test_a_chain_that_fails_later_leaves_no_table(tmp_path: Path, empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE TABLE order_ (id int)")

    with pytest.raises(Exception, match="order_"):
        Chain(tmp_path / "chain", empty_engine, *REVISIONS).upgrade()

    assert tables(empty_engine) == {"order_"}


def test_a_hundred_thousand_jobs_are_no_obstacle_to_a_downgrade(tmp_path: Path, empty_engine: Engine) -> None:
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS)
    chain.upgrade()
    fill(empty_engine, 100_000)

    chain.downgrade()

    assert tables(empty_engine) == {"alembic_version"}


# The table is somebody else's, or not what was recorded.


@pytest.mark.parametrize("transaction_per_migration", [False, True])
def test_a_job_of_the_consumers_is_refused_by_name_and_kept(
    tmp_path: Path, empty_engine: Engine, transaction_per_migration: bool
) -> None:
    run_sql(empty_engine, "CREATE TABLE job AS SELECT 7 AS id")
    options = {"transaction_per_migration": transaction_per_migration}
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS, options=options)

    with pytest.raises(
        CommandError, match=r"the table job in the schema 'public' .*by the option brooq_schema"
    ) as raised:
        chain.upgrade()

    assert "\n" not in str(raised.value)
    with empty_engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM job")).all() == [7]


def test_a_downgrade_drops_no_job_that_is_not_ours(tmp_path: Path, empty_engine: Engine) -> None:
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS)
    chain.upgrade()
    run_sql(empty_engine, "DROP TABLE job; CREATE TABLE job AS SELECT 7 AS id")

    with pytest.raises(CommandError, match="has no version mark"):
        chain.downgrade()

    with empty_engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM job")).all() == [7]


def test_a_table_that_migrate_made_is_taken_over_by_a_stamp(tmp_path: Path, empty_engine: Engine) -> None:
    migrate(empty_engine)
    fill(empty_engine, 3)
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS)

    with pytest.raises(CommandError, match="`alembic stamp brooq0001`"):
        chain.upgrade()
    chain.stamp("brooq0001")
    chain.upgrade()

    assert tables(empty_engine) == {"alembic_version", "brooq_alembic_version", "customer", "job", "order_"}
    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job")) == 3


def test_a_missing_table_is_refused_by_a_downgrade(tmp_path: Path, empty_engine: Engine) -> None:
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS)
    chain.upgrade()
    run_sql(empty_engine, "DROP TABLE job")

    with pytest.raises(CommandError, match=r"there is no table job in the schema 'public', .*`alembic stamp`"):
        chain.downgrade()


def test_another_database_than_postgresql_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)

    with pytest.raises(CommandError, match="works on postgresql alone, and this database is sqlite"):
        Chain(tmp_path / "chain", engine, *REVISIONS).upgrade()


# Another schema than the default one.


def test_the_option_puts_the_table_into_another_schema(tmp_path: Path, empty_engine: Engine) -> None:
    expected = models_catalog(empty_engine)
    run_sql(empty_engine, "CREATE SCHEMA queue; CREATE TABLE job AS SELECT 7 AS id")
    before = contents(empty_engine)
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS, config={"brooq_schema": "queue"})

    chain.upgrade()

    assert tables(empty_engine) == {"alembic_version", "customer", "job", "order_"}
    assert tables(empty_engine, "queue") == {"job"}
    with empty_engine.connect() as connection:
        connection.exec_driver_sql("SET search_path = queue")
        moved = {part: [tuple(map(in_public, row)) for row in rows] for part, rows in catalog(connection).items()}
    assert moved == expected
    elsewhere = empty_engine.execution_options(schema_translate_map={None: "queue"})
    with elsewhere.connect() as connection:
        check_schema(connection)
        assert drift(connection) == []
    chain.downgrade()
    run_sql(empty_engine, "DROP TABLE alembic_version")
    assert contents(empty_engine) == before


def in_public(value: Any) -> Any:
    return value.replace(" ON queue.", " ON public.") if isinstance(value, str) else value


def test_the_options_schema_has_to_exist(tmp_path: Path, empty_engine: Engine) -> None:
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS, config={"brooq_schema": "queue"})

    with pytest.raises(CommandError, match="the schema 'queue', which the option brooq_schema names, doesn't exist"):
        chain.upgrade()

    assert tables(empty_engine) == set()


def test_an_empty_option_is_none(tmp_path: Path, empty_engine: Engine) -> None:
    Chain(tmp_path / "chain", empty_engine, *REVISIONS, config={"brooq_schema": ""}).upgrade()

    assert "job" in tables(empty_engine)


@pytest.mark.parametrize(("name", "versions"), [("tenant", "tenant"), ("tenant", "public"), ("Tenant-1", "public")])
def test_a_translated_schema_gets_everything(tmp_path: Path, empty_engine: Engine, name: str, versions: str) -> None:
    with empty_engine.begin() as connection:
        connection.execute(CreateSchema(name))
    before = contents(empty_engine)
    elsewhere = empty_engine.execution_options(schema_translate_map={None: name})
    # Without it alembic would make its table there, and look for it in the default schema.
    options = {"version_table_schema": versions}
    chain = Chain(tmp_path / "chain", elsewhere, *REVISIONS, options=options)

    chain.upgrade()
    chain.upgrade()

    assert tables(empty_engine, name) - {"alembic_version"} == {"customer", "job", "order_"}
    assert tables(empty_engine) <= {"alembic_version"}
    with elsewhere.connect() as connection:
        check_schema(connection)
        assert drift(connection) == []
    chain.downgrade()
    run_sql(empty_engine, f"DROP TABLE {versions}.alembic_version")
    assert contents(empty_engine) == before


def test_a_table_in_a_later_schema_of_the_search_path_is_neither_taken_nor_dropped(
    tmp_path: Path, empty_engine: Engine
) -> None:
    migrate(empty_engine)
    run_sql(empty_engine, "CREATE SCHEMA tenant")
    url = empty_engine.url.update_query_dict({"options": "-c search_path=tenant,public"})
    chain = Chain(tmp_path / "chain", create_engine(url, poolclass=NullPool), *REVISIONS)

    chain.upgrade()
    assert tables(empty_engine, "tenant") == {"alembic_version", "customer", "job", "order_"}
    run_sql(empty_engine, "DROP TABLE tenant.job")
    with pytest.raises(CommandError, match="there is no table job in the schema 'tenant'"):
        chain.downgrade()

    assert tables(empty_engine) == {"brooq_alembic_version", "job"}


# As SQL, for a database that is reached in another way.


@pytest.mark.parametrize("options", [{}, {"transaction_per_migration": True}], ids=["one transaction", "one each"])
def test_its_sql_in_psql_makes_the_models_table_and_takes_it_back(
    tmp_path: Path, empty_engine: Engine, options: dict[str, Any]
) -> None:
    expected = models_catalog(empty_engine)
    before = contents(empty_engine)
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS, options=options)

    psql(empty_engine.url, chain.sql())

    with empty_engine.connect() as connection:
        assert catalog(connection) == expected
    chain.upgrade()
    chain.downgrade("merge")
    psql(empty_engine.url, chain.sql("merge:base"))
    run_sql(empty_engine, "DROP TABLE IF EXISTS alembic_version")
    assert contents(empty_engine) == before


def test_its_sql_goes_where_the_option_says(tmp_path: Path, empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE SCHEMA queue")
    chain = Chain(tmp_path / "chain", empty_engine, *REVISIONS, config={"brooq_schema": "queue"})

    psql(empty_engine.url, chain.sql())

    assert tables(empty_engine, "queue") == {"job"}
    with empty_engine.connect() as connection:
        assert drift(connection, "queue") == []


def test_the_sql_of_migrate_in_psql_goes_where_the_search_path_says(empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE SCHEMA queue")

    psql(empty_engine.url, "SET search_path = queue;" + migration_sql())

    assert tables(empty_engine, "queue") == {"brooq_alembic_version", "job"}


# A role that may do nothing in the schema "public".


@pytest.fixture
def confined(empty_engine: Engine) -> Iterator[Engine]:
    """
    The database as a role sees it that has a schema of its own, "shop", and no rights beyond it.
    """
    role = f"brooq_test_{token_hex(6)}"  # roles are the whole server's
    run_sql(
        empty_engine,
        f"CREATE ROLE {role} LOGIN; CREATE SCHEMA shop AUTHORIZATION {role}; REVOKE ALL ON SCHEMA public FROM PUBLIC",
    )
    yield create_engine(empty_engine.url.set(username=role), poolclass=NullPool)
    run_sql(empty_engine, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("options", "config"),
    [({}, {}), ({"version_table_schema": "shop"}, {"brooq_schema": "shop"})],
    ids=["search_path", "brooq_schema"],
)
def test_a_role_without_rights_on_public_needs_none(
    tmp_path: Path, confined: Engine, options: dict[str, Any], config: dict[str, str]
) -> None:
    engine = confined
    if not config:
        url = confined.url.update_query_dict({"options": "-c search_path=shop"})
        engine = create_engine(url, poolclass=NullPool)
    chain = Chain(tmp_path / "chain", engine, EMPTY, MERGE, options=options, config=config)

    chain.upgrade()

    assert tables(confined, "shop") == {"alembic_version", "job"}
    with confined.connect() as connection:
        assert drift(connection, "shop") == []
    chain.downgrade()
    assert tables(confined, "shop") == {"alembic_version"}


def test_migrate_works_for_a_role_without_rights_on_public(confined: Engine) -> None:
    url = confined.url.update_query_dict({"options": "-c search_path=shop"})

    assert migrate(url).changed
    assert not migrate(url).changed

    assert tables(confined, "shop") == {"brooq_alembic_version", "job"}
    assert migrate(url, to="base").changed
