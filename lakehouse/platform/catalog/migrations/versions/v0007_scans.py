"""Add the results of scans for tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SCANS, _TABLES = "lakehouse_scans", "lakehouse_scanned_tables"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        _SCANS,
        sa.Column("place", sa.String(700), nullable=False),
        sa.Column("author", sa.String(512), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("folders", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("place", name=f"pk_{_SCANS}"),
    )
    op.create_table(
        _TABLES,
        sa.Column("place", sa.String(700), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("location", sa.String(2000), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("place", "number", name=f"pk_{_TABLES}"),
        sa.ForeignKeyConstraint(["place"], [f"{_SCANS}.place"], name=f"fk_{_TABLES}_place_{_SCANS}"),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table(_TABLES)
    op.drop_table(_SCANS)
