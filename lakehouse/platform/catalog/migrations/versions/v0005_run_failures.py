"""Record how often a run failed, whether another try can help, and since when it waits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = ("failed_tries", "waits", "waiting_since_ms", "permanent")


def upgrade() -> None:
    """Add the columns; all tries of a run that has failed count as failures."""
    op.add_column("lakehouse_runs", sa.Column("failed_tries", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("lakehouse_runs", sa.Column("waits", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("lakehouse_runs", sa.Column("waiting_since_ms", sa.BigInteger(), nullable=True))
    op.add_column("lakehouse_runs", sa.Column("permanent", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE lakehouse_runs SET failed_tries = tries WHERE state = 'failed'")


def downgrade() -> None:
    """Drop the columns."""
    op.execute("UPDATE lakehouse_runs SET state = 'failed' WHERE state = 'waiting'")
    with op.batch_alter_table("lakehouse_runs") as batch:
        for name in reversed(_COLUMNS):
            batch.drop_column(name)
