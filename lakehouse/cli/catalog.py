"""Commands that list and change a catalog's tables, or upgrade its database."""

from __future__ import annotations

import os

from sqlalchemy import create_engine

from lakehouse.cli.backends.open import open_backend
from lakehouse.cli.group import Given
from lakehouse.cli.output import rows_of, show_document
from lakehouse.cli.specs import author
from lakehouse.cli.table import catalog_table, spec_of
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import catalog_url, upgrade
from lakehouse.platform.services.support import table_support
from lakehouse.spec.contracts.catalog import (
    DroppedTable,
    TableLocation,
    UpdatedSpec,
    UpgradedCatalog,
)


def list_tables(given: Given) -> None:
    """Print the tables of a catalog."""
    with open_backend(given.catalog) as backend:
        tables = backend.tables(given.namespace)
    show_document(tables, given.output, rows=rows_of(tables.tables))


def register(given: Given) -> None:
    """Register an existing table."""
    name, table = catalog_table(given)
    with load_catalog(name) as catalog:
        opened = catalog.register_table(
            table, given.location, author=author(os.environ), new_id=given.new_id, options=given.option
        )
    _show_registered(table, opened, given.output)


def accept(given: Given) -> None:
    """Register the table that is now at the location of a catalog entry."""
    name, table = catalog_table(given)
    with load_catalog(name) as catalog:
        opened = catalog.accept_table(table, new_id=given.new_id)
    _show_registered(table, opened, given.output)


def _show_registered(table: str, opened: Table, output: str) -> None:
    services = opened.services_as_loaded
    document = TableLocation(
        table=table,
        location=opened.location,
        table_version=opened.config.version,
        table_id=opened.config.identity.id or None,
        unsupported=table_support(services.table, services.policies).refusals,
    )
    show_document(document, output, omitted=() if document.unsupported else ("unsupported",))


def update(given: Given) -> None:
    """Apply a table spec: store it as the next version in the catalog."""
    spec = spec_of(given.table)
    if spec is None:
        raise UserError(f"--table {given.table!r} is not a table spec; give the path of a YAML file", table=given.table)
    with load_catalog(given.catalog) as catalog:
        version = catalog.update_spec(spec, author=author(os.environ))
    show_document(UpdatedSpec(table=spec.table, spec_version=version), given.output)


def drop(given: Given) -> None:
    """Remove a table from the catalog, and its files with `--purge`."""
    name, table = catalog_table(given)
    with load_catalog(name) as catalog:
        remaining = catalog.drop_table(table, purge=given.purge)
    show_document(DroppedTable(table=table, files_deleted=given.purge, kept=tuple(remaining)), given.output)


def upgrade_schema(given: Given) -> None:
    """Upgrade the database schema of a catalog."""
    engine = create_engine(catalog_url(given.catalog, os.environ))
    try:
        revision = upgrade(engine)
    finally:
        engine.dispose()
    url = engine.url.render_as_string(hide_password=True)
    show_document(UpgradedCatalog(catalog=url, schema_revision=revision), given.output)
