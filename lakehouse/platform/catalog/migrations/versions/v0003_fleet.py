"""Add the state of tables, alarms, silences and actions of users; codes of decisions, authors of policies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _table(name: str, *columns: sa.Column[object]) -> None:
    """Create a table with the key `id`; a column `table_id` refers to the tables of the catalog."""
    constraints: list[sa.Constraint] = [sa.PrimaryKeyConstraint("id", name=f"pk_{name}")]
    if any(column.name == "table_id" for column in columns):
        constraints.append(sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name=f"fk_{name}_table_id"))
    op.create_table(name, sa.Column("id", _ID, nullable=False), *columns, *constraints)


def upgrade() -> None:
    """Add the columns and tables; codes and authors are empty for existing rows."""
    op.add_column("lakehouse_decisions", sa.Column("code", sa.String(40), nullable=False, server_default=""))
    op.add_column("lakehouse_policies", sa.Column("author", sa.String(512), nullable=False, server_default=""))
    op.add_column("lakehouse_runs", sa.Column("progress", sa.JSON(), nullable=True))
    op.create_index("ix_lakehouse_runs_state_started_ms", "lakehouse_runs", ["state", "started_ms"])
    _create_states()
    _table(
        "lakehouse_alarms",
        sa.Column("rule", sa.String(100), nullable=False),
        sa.Column("table_id", _ID, nullable=True),
        sa.Column("subject", sa.String(512), nullable=False, server_default=""),
        sa.Column("severity", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False, server_default=""),
        sa.Column("raised_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("resolved_ms", sa.BigInteger(), nullable=True),
        sa.Column("notified", sa.JSON(), nullable=False),
    )
    op.create_index("ix_lakehouse_alarms_state_table_id", "lakehouse_alarms", ["state", "table_id"])
    _table(
        "lakehouse_silences",
        sa.Column("rule", sa.String(100), nullable=False, server_default=""),
        sa.Column("scope", sa.String(401), nullable=False, server_default=""),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.String(512), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
    )
    _table(
        "lakehouse_actions",
        sa.Column("table_id", _ID, nullable=True),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("action", sa.String(50), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(512), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("request_id", _ID, nullable=True),
        sa.Column("dag_id", sa.String(250), nullable=False, server_default=""),
        sa.Column("dag_run_id", sa.String(250), nullable=False, server_default=""),
        sa.Column("result", sa.JSON(), nullable=False),
    )
    op.create_index("ix_lakehouse_actions_table_id_created_ms", "lakehouse_actions", ["table_id", "created_ms"])


def _create_states() -> None:
    """Create the tables for states and their hourly history, whose keys have no `id`."""
    op.create_table(
        "lakehouse_table_states",
        sa.Column("table_id", _ID, nullable=False),
        sa.Column("changed_ms", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("looked_ms", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("look_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("severity", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("numbers", sa.JSON(), nullable=False),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("due", sa.JSON(), nullable=False),
        sa.Column("due_services", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("table_id", name="pk_lakehouse_table_states"),
        sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name="fk_lakehouse_table_states_table_id"),
    )
    op.create_index("ix_lakehouse_table_states_severity_table_id", "lakehouse_table_states", ["severity", "table_id"])
    for column in ("changed_ms", "look_at_ms", "looked_ms", "due_services"):
        op.create_index(f"ix_lakehouse_table_states_{column}", "lakehouse_table_states", [column])
    op.create_table(
        "lakehouse_table_points",
        sa.Column("table_id", _ID, nullable=False),
        sa.Column("hour_ms", sa.BigInteger(), nullable=False),
        sa.Column("numbers", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("table_id", "hour_ms", name="pk_lakehouse_table_points"),
        sa.ForeignKeyConstraint(["table_id"], ["lakehouse_tables.id"], name="fk_lakehouse_table_points_table_id"),
    )
    op.create_index("ix_lakehouse_table_points_hour_ms", "lakehouse_table_points", ["hour_ms"])


def downgrade() -> None:
    """Drop the tables and columns."""
    for name in ("actions", "silences", "alarms", "table_points", "table_states"):
        op.drop_table(f"lakehouse_{name}")
    op.drop_index("ix_lakehouse_runs_state_started_ms", "lakehouse_runs")
    for table, column in (("runs", "progress"), ("policies", "author"), ("decisions", "code")):
        with op.batch_alter_table(f"lakehouse_{table}") as batch:
            batch.drop_column(column)
