"""Schema migrations of the catalog, run by Alembic."""
