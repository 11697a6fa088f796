"""
The table ``job``.

A released revision never changes, so everything is written out here: nothing of
the model is imported, which may have moved on since.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from sqlalchemy_brooq.migrations.revising import begin

revision = "brooq0001"
down_revision = None
branch_labels = ("brooq",)
depends_on = None

# A UUID of version 7: the milliseconds of the clock put in front of a random one of version 4.
ID_DEFAULT = (
    "(encode(set_bit(set_bit(OVERLAY(uuid_send(gen_random_uuid()) PLACING"
    ' "substring"(int8send((floor((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric)))::bigint), 3)'
    " FROM 1 FOR 6), (52)::bigint, 1), (53)::bigint, 1), 'hex'::text))::uuid"
)


def upgrade() -> None:
    """
    Create the table, its indexes and its storage settings.
    """
    schema = begin(op, since=down_revision)
    # Names in op.f() are final: a naming convention of the consumer's doesn't touch them.
    job = op.create_table(
        "job",
        *_columns(),
        sa.PrimaryKeyConstraint("id", name=op.f("job_pkey")),
        sa.CheckConstraint(
            "state IN ('pending', 'processing', 'failed', 'done', 'dead', 'canceled')", name=op.f("job_state")
        ),
        sa.CheckConstraint("priority BETWEEN -2 AND 2", name=op.f("job_priority")),
        sa.CheckConstraint(
            "state <> 'processing' OR (locked_by IS NOT NULL AND locked_until IS NOT NULL AND claimed_at IS NOT NULL)",
            name=op.f("job_lease"),
        ),
        comment="sqlalchemy-brooq: brooq0001",
        schema=schema,
    )
    _create_indexes(schema)
    # Bound to the table, so that it follows the table into another schema; raw text wouldn't.
    op.execute(
        sa.DDL(  # type: ignore[no-untyped-call] # SQLAlchemy's, not annotated
            "ALTER TABLE %(fullname)s SET"
            " (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 100, fillfactor = 70)"
        ).against(job)
    )


def downgrade() -> None:
    """
    Drop the table with everything that was in it.
    """
    op.drop_table("job", schema=begin(op, since=revision))


def _columns() -> list[sa.Column[object]]:
    moment = sa.DateTime(timezone=True)
    return [
        sa.Column("id", sa.Uuid(), server_default=sa.text(ID_DEFAULT), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("payload", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'pending'::text"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("requeues", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("available_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("claimed_at", moment),
        sa.Column("locked_by", sa.Text()),
        sa.Column("locked_until", moment),
        sa.Column("last_error", sa.Text()),
        sa.Column("result", JSONB()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("meta", JSONB()),
        sa.Column("created_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", moment, server_default=sa.text("now()"), nullable=False),
    ]


def _create_indexes(schema: str | None) -> None:
    """
    Create the partial indexes; no statement on the hot path reads what they leave out.
    """
    first = sa.text("priority DESC")
    ready = "state IN ('pending', 'failed')"
    _create_index(schema, "job_ready", [first, "available_at", "id"], f"{ready} AND priority >= -2")
    _create_index(schema, "job_ready_topic", ["topic", first, "available_at", "id"], ready)
    _create_index(schema, "job_idempotency", ["topic", "idempotency_key"], "idempotency_key IS NOT NULL", unique=True)
    _create_index(schema, "job_leased", ["locked_until"], "state = 'processing' AND locked_until IS NOT NULL")
    _create_index(schema, "job_terminal", ["updated_at"], "state IN ('done', 'dead', 'canceled')")


def _create_index(
    schema: str | None, name: str, columns: list[str | sa.TextClause], where: str, *, unique: bool = False
) -> None:
    op.create_index(op.f(name), "job", columns, unique=unique, schema=schema, postgresql_where=sa.text(where))
