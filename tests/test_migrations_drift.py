"""
``schema.drift`` finds whatever somebody changed by hand, and nothing in a table that is as it was made.
"""

from __future__ import annotations

import pytest
from sqlalchemy import URL, Engine, MetaData, Table, create_engine
from sqlalchemy.schema import CreateSchema

from sqlalchemy_brooq import metadata
from sqlalchemy_brooq.catalog import Part, expected
from sqlalchemy_brooq.schema import drift
from tests.catalogs import run_sql


def found(engine: Engine, schema: str | None = None) -> list[str]:
    with engine.connect() as connection:
        return drift(connection, schema)


def test_a_migrated_table_has_none(engine: Engine) -> None:
    assert found(engine) == []


def test_nor_has_one_that_other_tables_refer_to(engine: Engine) -> None:
    run_sql(engine, "CREATE TABLE order_ (job_id uuid REFERENCES job ON DELETE CASCADE)")

    assert found(engine) == []


def test_nor_has_one_in_use(engine: Engine) -> None:
    run_sql(engine, "INSERT INTO job (topic) SELECT 'a' FROM generate_series(1, 1000)")
    run_sql(engine, "VACUUM (ANALYZE) job")

    assert found(engine) == []


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("DROP INDEX job_ready", ("index", "job_ready")),
        ("ALTER TABLE job DROP CONSTRAINT job_priority", ("constraint", "job_priority")),
        ("ALTER TABLE job DROP CONSTRAINT job_pkey", ("constraint", "job_pkey")),
        ("ALTER TABLE job DROP COLUMN meta", ("column", "meta")),
        ("ALTER TABLE job RESET (fillfactor)", ("setting", "fillfactor")),
    ],
)
def test_a_part_that_is_gone_is_told_with_what_it_was(engine: Engine, change: str, part: Part) -> None:
    run_sql(engine, change)

    assert found(engine) == [f"the {' '.join(part)} is missing, which is {expected()[part]}"]


@pytest.mark.parametrize(
    ("change", "part", "now"),
    [
        (
            "DROP INDEX job_terminal; CREATE INDEX job_terminal ON job (updated_at) WHERE state = 'done'",
            ("index", "job_terminal"),
            "USING btree (updated_at) WHERE (state = 'done'::text)",
        ),
        (
            "DROP INDEX job_idempotency; CREATE INDEX job_idempotency ON job (topic)",
            ("index", "job_idempotency"),
            "USING btree (topic)",
        ),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'job_leased'::regclass",
            ("index", "job_leased"),
            f"{expected()['index', 'job_leased']} (not valid)",
        ),
        (
            "ALTER TABLE job DROP CONSTRAINT job_priority, ADD CONSTRAINT job_priority CHECK (priority < 9) NOT VALID",
            ("constraint", "job_priority"),
            "CHECK ((priority < 9)) NOT VALID",
        ),
        ("ALTER TABLE job ALTER topic TYPE varchar(99)", ("column", "topic"), "character varying(99) NOT NULL"),
        ("ALTER TABLE job ALTER attempts DROP NOT NULL", ("column", "attempts"), "integer DEFAULT 0"),
        ("ALTER TABLE job ALTER attempts DROP DEFAULT", ("column", "attempts"), "integer NOT NULL"),
        (
            "ALTER TABLE job SET (autovacuum_vacuum_threshold = 50)",
            ("setting", "autovacuum_vacuum_threshold"),
            "50",
        ),
        ("ALTER TABLE job SET UNLOGGED", ("property", "logged"), "false"),
        ("ALTER TABLE job ENABLE ROW LEVEL SECURITY", ("property", "row security"), "true"),
    ],
)
def test_a_part_that_was_changed_is_told_with_both(engine: Engine, change: str, part: Part, now: str) -> None:
    run_sql(engine, change)

    assert found(engine) == [f"the {' '.join(part)} is {now}, and should be {expected()[part]}"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("CREATE INDEX mine ON job (created_at)", "the index mine isn't sqlalchemy-brooq's: USING btree (created_at)"),
        ("ALTER TABLE job ADD COLUMN tenant int", "the column tenant isn't sqlalchemy-brooq's: integer"),
        (
            "ALTER TABLE job SET (autovacuum_enabled = false)",
            "the setting autovacuum_enabled isn't sqlalchemy-brooq's: false",
        ),
        (
            "CREATE TRIGGER mine BEFORE UPDATE ON job EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "the trigger mine isn't sqlalchemy-brooq's: CREATE TRIGGER mine BEFORE UPDATE ON public.job ",
        ),
        ("DROP TABLE job", "the table job is missing; this version needs its revision brooq0001: "),
        ("COMMENT ON TABLE job IS 'mine'", "the table job isn't sqlalchemy-brooq's "),
        ("COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'", "the table job is of revision brooq9999; "),
    ],
)
def test_what_is_not_ours_is_one_line(engine: Engine, change: str, line: str) -> None:
    run_sql(engine, change)

    (said,) = found(engine)

    assert said.startswith(line)
    assert "\n" not in said


def test_all_changes_are_told_at_once(engine: Engine) -> None:
    run_sql(engine, "DROP INDEX job_ready; DROP INDEX job_leased; ALTER TABLE job RESET (fillfactor)")

    assert [line.split(" is missing")[0] for line in found(engine)] == [
        "the index job_leased",
        "the index job_ready",
        "the setting fillfactor",
    ]


def test_the_table_of_the_schema_that_is_meant_is_compared(engine: Engine) -> None:
    elsewhere = engine.execution_options(schema_translate_map={None: "Queue 1"})
    with engine.begin() as connection:
        connection.execute(CreateSchema("Queue 1"))
    metadata.create_all(elsewhere)
    run_sql(engine, 'DROP INDEX "Queue 1".job_ready')

    assert found(engine) == []
    for lines in (found(elsewhere), found(engine, "Queue 1")):
        assert [line.split(" is missing")[0] for line in lines] == ["the index job_ready"]


def test_the_models_table_has_none(empty_database_url: URL) -> None:
    engine = create_engine(empty_database_url)
    metadata.create_all(engine)
    assert found(engine) == []
    engine.dispose()


def test_a_copy_without_its_parts_is_told_part_by_part(engine: Engine) -> None:
    table = Table("job", MetaData(), autoload_with=engine)
    run_sql(engine, "CREATE SCHEMA copy; CREATE TABLE copy.job AS SELECT * FROM job")
    run_sql(engine, "COMMENT ON TABLE copy.job IS 'sqlalchemy-brooq: brooq0001'")

    lines = found(engine, "copy")

    assert sum(line.startswith("the index ") for line in lines) == len(table.indexes)
    assert sum(line.startswith("the constraint ") for line in lines) == 4
    assert sum(line.startswith("the setting ") for line in lines) == 3
