"""The context in which a source is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.errors import UserError
from lakehouse.spark.sources import Session
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.table.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """The values that a source is opened with.

    Attributes:
        session: The Spark session that reads.
        spec: The spec of the table.
        environ: Environment variables, for `${VAR}` in settings and for connections.
        storage_options: Options for file systems and object stores.
        tables: The tables that stay open between runs.
    """

    session: Session
    spec: TableSpec
    environ: Mapping[str, str]
    storage_options: Mapping[str, str]
    tables: OpenedTables = field(default_factory=OpenedTables)


def ingest_of(spec: TableSpec) -> IngestSpec:
    """Return the `ingest` section of a spec; raise UserError if it has none."""
    if spec.inputs and spec.ingest is None:
        names = ", ".join(spec.inputs)
        raise UserError(f"table {spec.table} has several inputs: choose one of {names}", table=spec.table)
    if spec.ingest is None:
        raise UserError(
            f"table {spec.table} declares no ingestion: add 'ingest' with a path to {spec.source or 'its spec'}",
            table=spec.table,
        )
    return spec.ingest
