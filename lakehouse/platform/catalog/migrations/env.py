"""Run migrations on the connection that the catalog hands over (see `lakehouse.platform.catalog.connect.upgrade`)."""

from __future__ import annotations

from alembic import context

from lakehouse.platform.catalog.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
