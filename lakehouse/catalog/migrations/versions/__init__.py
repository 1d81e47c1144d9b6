"""The history of the catalog's schema, for Alembic."""
