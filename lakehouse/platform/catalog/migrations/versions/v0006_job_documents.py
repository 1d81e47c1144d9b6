"""Add the documents of jobs, for drivers that share no folder with Airflow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TABLE = "lakehouse_job_documents"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        _TABLE,
        sa.Column("job", sa.String(700), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("changed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "name", name=f"pk_{_TABLE}"),
    )
    op.create_index(f"ix_{_TABLE}_changed_ms", _TABLE, ["changed_ms"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table(_TABLE)
