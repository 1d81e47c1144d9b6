"""The first schema: namespaces, tables, specs, policies, requests, runs, decisions, leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TABLES = ("specs", "runs", "requests", "decisions", "tables", "policies", "namespaces", "leases")


def upgrade() -> None:
    """Create all tables."""
    _create_what_is_known()
    _create_what_happens()


def downgrade() -> None:
    """Drop all tables."""
    for name in _TABLES:
        op.drop_table(f"lakehouse_{name}")


def _create_what_is_known() -> None:
    op.create_table(
        "lakehouse_leases",
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("owner", sa.String(length=512), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_lakehouse_leases"),
    )
    op.create_table(
        "lakehouse_namespaces",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lakehouse_namespaces"),
    )
    op.create_table(
        "lakehouse_policies",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("pattern", sa.String(length=200), nullable=False),
        sa.Column("service", sa.String(length=50), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["namespace"], ["lakehouse_namespaces.name"], name="fk_lakehouse_policies_namespace"),
        sa.PrimaryKeyConstraint("id", name="pk_lakehouse_policies"),
        sa.UniqueConstraint(
            "namespace", "name", "pattern", "service", name="uq_lakehouse_policies_namespace_name_pattern_service"
        ),
    )
    op.create_table(
        "lakehouse_tables",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("location", sa.String(length=700), nullable=False),
        sa.Column("spec_version", sa.Integer(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["namespace"], ["lakehouse_namespaces.name"], name="fk_lakehouse_tables_namespace"),
        sa.PrimaryKeyConstraint("id", name="pk_lakehouse_tables"),
        sa.UniqueConstraint("location", name="uq_lakehouse_tables_location"),
        sa.UniqueConstraint("namespace", "name", name="uq_lakehouse_tables_namespace_name"),
    )
    op.create_table(
        "lakehouse_specs",
        sa.Column("table_id", _ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=512), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name="fk_lakehouse_specs_table_id"),
        sa.PrimaryKeyConstraint("table_id", "version", name="pk_lakehouse_specs"),
    )


def _create_what_happens() -> None:
    op.create_table(
        "lakehouse_decisions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("table_id", _ID, nullable=False),
        sa.Column("service", sa.String(length=50), nullable=False),
        sa.Column("decided_ms", sa.BigInteger(), nullable=False),
        sa.Column("due", sa.Boolean(), nullable=False),
        sa.Column("chosen", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger(), nullable=True),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("predicted", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name="fk_lakehouse_decisions_table_id"),
        sa.PrimaryKeyConstraint("id", name="pk_lakehouse_decisions"),
    )
    op.create_index(
        "ix_lakehouse_decisions_table_id_service_decided_ms",
        "lakehouse_decisions",
        ["table_id", "service", "decided_ms"],
        unique=False,
    )
    op.create_table(
        "lakehouse_requests",
        sa.Column("id", _ID, nullable=False),
        sa.Column("table_id", _ID, nullable=False),
        sa.Column("service", sa.String(length=50), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("requested_by", sa.String(length=512), nullable=False),
        sa.Column("requested_ms", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("run_id", sa.String(length=512), nullable=True),
        sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name="fk_lakehouse_requests_table_id"),
        sa.PrimaryKeyConstraint("id", name="pk_lakehouse_requests"),
    )
    op.create_index(
        "ix_lakehouse_requests_table_id_service_state",
        "lakehouse_requests",
        ["table_id", "service", "state"],
        unique=False,
    )
    op.create_table(
        "lakehouse_runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("run_id", sa.String(length=512), nullable=False),
        sa.Column("table_id", _ID, nullable=False),
        sa.Column("service", sa.String(length=50), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("instant", sa.String(length=40), nullable=True),
        sa.Column("predicted", sa.JSON(), nullable=False),
        sa.Column("actual", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name="fk_lakehouse_runs_table_id"),
        sa.PrimaryKeyConstraint("id", name="pk_lakehouse_runs"),
        sa.UniqueConstraint("run_id", "table_id", "service", name="uq_lakehouse_runs_run_id_table_id_service"),
    )
    op.create_index(
        "ix_lakehouse_runs_table_id_service_started_ms",
        "lakehouse_runs",
        ["table_id", "service", "started_ms"],
        unique=False,
    )
