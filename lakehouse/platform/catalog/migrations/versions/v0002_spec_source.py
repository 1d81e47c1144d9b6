"""Versions of specs say which file they came from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of older versions the file is not known."""
    op.add_column("lakehouse_specs", sa.Column("source", sa.String(length=1000), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("lakehouse_specs") as batch:
        batch.drop_column("source")
