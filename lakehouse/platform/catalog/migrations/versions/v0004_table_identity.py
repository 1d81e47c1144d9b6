"""Record the identity of each registered table: its name, its record key and its id."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; existing entries record an identity with their next write."""
    op.add_column("lakehouse_tables", sa.Column("identity", sa.JSON(), nullable=True))
    op.add_column("lakehouse_tables", sa.Column("uid", sa.String(200), nullable=True))
    op.create_index("ix_lakehouse_tables_uid", "lakehouse_tables", ["uid"], unique=True)


def downgrade() -> None:
    """Drop the columns."""
    op.drop_index("ix_lakehouse_tables_uid", "lakehouse_tables")
    with op.batch_alter_table("lakehouse_tables") as batch:
        batch.drop_column("uid")
        batch.drop_column("identity")
