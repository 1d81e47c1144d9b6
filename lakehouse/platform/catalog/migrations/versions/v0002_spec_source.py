"""Record the source file of each spec version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; it is empty for existing versions."""
    op.add_column("lakehouse_specs", sa.Column("source", sa.String(length=1000), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop the column."""
    with op.batch_alter_table("lakehouse_specs") as batch:
        batch.drop_column("source")
