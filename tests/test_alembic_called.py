"""
Our revisions called from a consumer's own: one linear history.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.util import CommandError
from sqlalchemy import URL, Engine, NullPool, create_engine, inspect

from sqlalchemy_brooq import migrations, schema
from sqlalchemy_brooq.migrations import migrate
from sqlalchemy_brooq.schema import drift
from tests.catalogs import catalog, contents, models_catalog, run_sql
from tests.chains import CUSTOMER, Chain

CALLING = """
    import sqlalchemy_brooq as brooq
    from alembic import op

    revision, down_revision = "jobs", "customer"


    def upgrade():
        brooq.migrations.upgrade(op, to="brooq0001")


    def downgrade():
        brooq.migrations.downgrade(op, to=None, since="brooq0001")
    """
ORDER = """
    import sqlalchemy as sa
    import sqlalchemy_brooq as brooq
    from alembic import op

    revision, down_revision = "order", "jobs"


    def upgrade():
        op.create_table("order_", sa.Column("job_id", sa.Uuid, sa.ForeignKey("job.id")))


    def downgrade():
        op.drop_table("order_")
    """


@pytest.fixture
def empty_engine(empty_database_url: URL) -> Engine:
    return create_engine(empty_database_url, poolclass=NullPool)


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


@pytest.mark.parametrize("options", [{}, {"transaction_per_migration": True}], ids=["one transaction", "one each"])
def test_a_linear_history_makes_the_models_table_and_takes_it_back(
    tmp_path: Path, empty_engine: Engine, options: dict[str, Any]
) -> None:
    expected = models_catalog(empty_engine)
    before = contents(empty_engine)
    chain = Chain(tmp_path / "chain", empty_engine, CUSTOMER, CALLING, ORDER, locations=(), options=options)

    chain.upgrade()

    with empty_engine.connect() as connection:
        found = catalog(connection)
        # What the order's foreign key adds to the table that it leads to.
        assert found.pop("triggers") != expected.pop("triggers")
        assert found == expected
        assert drift(connection) == []
    run_sql(empty_engine, "INSERT INTO job (topic) VALUES ('a'); INSERT INTO order_ SELECT id FROM job")
    chain.downgrade()
    run_sql(empty_engine, "DROP TABLE alembic_version")
    assert contents(empty_engine) == before


def test_migrate_leaves_it_alone(tmp_path: Path, empty_engine: Engine) -> None:
    Chain(tmp_path / "chain", empty_engine, CUSTOMER, CALLING, locations=()).upgrade()

    assert migrate(empty_engine).managed_elsewhere


def test_it_goes_where_the_option_says(tmp_path: Path, empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE SCHEMA queue")
    chain = Chain(tmp_path / "chain", empty_engine, CUSTOMER, CALLING, locations=(), config={"brooq_schema": "queue"})

    chain.upgrade()

    assert tables(empty_engine) == {"alembic_version", "customer"}
    assert inspect(empty_engine).get_table_names(schema="queue") == ["job"]
    chain.downgrade()
    assert inspect(empty_engine).get_table_names(schema="queue") == []


def test_an_operations_object_is_as_good_as_alembics_op(empty_engine: Engine) -> None:
    before = contents(empty_engine)

    with empty_engine.begin() as connection:
        migrations.upgrade(Operations(MigrationContext.configure(connection)))
        assert drift(connection) == []
    with empty_engine.begin() as connection:
        migrations.downgrade(Operations(MigrationContext.configure(connection)))

    assert contents(empty_engine) == before


# As SQL.


def test_its_sql_makes_the_models_table_and_takes_it_back(tmp_path: Path, empty_engine: Engine) -> None:
    expected = models_catalog(empty_engine)
    before = contents(empty_engine)
    chain = Chain(tmp_path / "chain", empty_engine, CUSTOMER, CALLING, locations=())

    run_sql(empty_engine, chain.sql())

    with empty_engine.connect() as connection:
        assert catalog(connection) == expected
    run_sql(empty_engine, chain.sql("jobs:base"))
    run_sql(empty_engine, "DROP TABLE IF EXISTS alembic_version")
    assert contents(empty_engine) == before


def test_as_sql_a_later_revision_has_to_say_where_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.migrations.calling.REVISIONS", ("brooq0001", "brooq0002"))
    op = Operations(MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True}))

    with pytest.raises(
        CommandError, match=r"nothing can be read: say upgrade\(op, to='brooq0002', since='brooq0001'\)"
    ):
        migrations.upgrade(op, to="brooq0002")


# What is refused.


@pytest.mark.parametrize("to", ["head", "base", "brooq9999", "", "heads", "+1"])
def test_a_revision_that_is_not_one_of_ours_is_refused_by_name(empty_engine: Engine, to: str) -> None:
    with empty_engine.connect() as connection:
        op = Operations(MigrationContext.configure(connection))
        with pytest.raises(CommandError, match=f"to='{to.replace('+', '.')}' is no revision of .* it knows brooq0001"):
            migrations.upgrade(op, to=to)
        with pytest.raises(CommandError, match="since='head' is no revision"):
            migrations.downgrade(op, since="head")


def test_a_table_of_somebody_elses_is_refused_and_kept(empty_engine: Engine) -> None:
    run_sql(empty_engine, "CREATE TABLE job (id int)")

    with empty_engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        for call in (migrations.upgrade, migrations.downgrade):
            with pytest.raises(CommandError, match="isn't sqlalchemy-brooq's"):
                call(op)

    assert tables(empty_engine) == {"job"}


def test_a_table_that_is_there_already_is_as_good_as_made(empty_engine: Engine) -> None:
    migrate(empty_engine)

    with empty_engine.begin() as connection:
        migrations.upgrade(Operations(MigrationContext.configure(connection)), to="brooq0001")

        assert drift(connection) == []


@pytest.mark.parametrize(
    ("arrange", "call", "reason"),
    [
        (
            False,
            {"since": "brooq0001"},
            "there is no table job in the schema 'public', but since='brooq0001' says otherwise",
        ),
        (True, {"since": "base"}, "is of revision brooq0001, but since='base' says otherwise"),
    ],
)
def test_a_start_that_is_not_what_is_there_is_refused(
    empty_engine: Engine, arrange: bool, call: dict[str, Any], reason: str
) -> None:
    if arrange:
        migrate(empty_engine)

    with empty_engine.begin() as connection, pytest.raises(CommandError, match=reason):
        migrations.upgrade(Operations(MigrationContext.configure(connection)), **call)


def test_a_downgrade_of_nothing_is_refused(empty_engine: Engine) -> None:
    with empty_engine.begin() as connection, pytest.raises(CommandError, match="there is no table job"):
        migrations.downgrade(Operations(MigrationContext.configure(connection)))


def test_a_downgrade_leads_down(empty_engine: Engine) -> None:
    migrate(empty_engine)

    with empty_engine.begin() as connection, pytest.raises(CommandError, match="leads nowhere"):
        migrations.downgrade(Operations(MigrationContext.configure(connection)), to="brooq0001", since="brooq0001")


def test_an_upgrade_does_not_lead_down(empty_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(empty_engine)
    run_sql(empty_engine, "COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq0002'")
    names = ("brooq0001", "brooq0002")
    monkeypatch.setattr(schema, "REVISIONS", names)
    monkeypatch.setattr("sqlalchemy_brooq.migrations.chain.REVISIONS", names)

    with empty_engine.begin() as connection, pytest.raises(CommandError, match=r"newer than brooq0001: use downgrade"):
        migrations.upgrade(Operations(MigrationContext.configure(connection)), to="brooq0001")
