"""`lakehouse ingest commits`: the newest commits of an ingestion, without Spark."""

from __future__ import annotations

import os
from dataclasses import replace

from lakehouse.cli.group import Given
from lakehouse.cli.output import rows_of, show_document
from lakehouse.cli.table import catalog_name, spec_of
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.ingest.commit_reports import recent_commits
from lakehouse.spark.submitted import submitted_storage_options
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec


def show_commits(given: Given) -> int:
    """Print the newest commits of the ingestion of a table."""
    spec = _declared(given.table).of_input(given.input)
    location = location_of(spec, os.environ)
    if spec.is_template != bool(given.target):
        raise UserError(
            f"--target {given.target}: the spec of {spec.table} fills one table only; remove the flag"
            if given.target
            else f"--target is missing: the spec {spec.table} fills several tables; name one of them",
            flag="--target",
        )
    if given.target:
        location = f"{location.rstrip('/')}/{given.target}"
    options = submitted_storage_options(os.environ)
    table = Table.open(location, storage_options=options, allowed_functions=spec.functions)
    document = recent_commits(table, spec, given.limit)
    show_document(document, given.output, rows_of(document.commits))
    return 0


def _declared(name: str) -> TableSpec:
    """Load the spec from a file or from a catalog table."""
    spec = spec_of(name)
    if spec is not None:
        return spec
    identifier = catalog_name(name)
    if identifier is None:
        raise UserError(f"--table {name}: give a table spec, such as orders.yaml, or namespace.table", flag="--table")
    with load_catalog(identifier[0]) as catalog:
        entry = catalog.entry(identifier[1])
        return replace(entry.spec, location=entry.location)
