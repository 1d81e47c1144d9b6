"""Check an ingestion before a Spark session starts, with its table's metadata and one request to its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.platform.catalog.declared_tables import check_declaration, open_declared_table
from lakehouse.platform.sources.registry import CHECKS
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spec.command_check import check_declared
from lakehouse.spec.job_command import IngestJob, ReplayCommand
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec


def check_ingest(
    spec: TableSpec, command: IngestJob, *, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> tuple[str, ...]:
    """Check the options, interval, table and source of an ingestion without listing data files.

    Args:
        spec: The spec of the table.
        command: The command with the data interval and the run options.
        environ: Environment variables, for `${VAR}` in the spec.
        storage_options: Options of the storage, such as `spark.hadoop.fs.*`.

    Returns:
        Notes about the run: whether it creates the table.

    Raises:
        UserError: The run cannot succeed; the message contains the setting.
        RetryableError: The storage of the table or of the source does not answer.
    """
    check_declared(spec, command, environ)
    placed = replace(spec, location=location_of(spec, environ))
    if placed.is_template:
        # The source provides the names and keys of the tables.
        CHECKS[ingest_of(placed).source.KIND](placed, command.interval, environ, storage_options)
        return ()
    options = {**placed.write_options(), **command.options}
    table = open_declared_table(placed, options, Env(storage=open_storage(placed.location, storage_options)))
    if table is None:
        check_declaration(placed, options)
    if isinstance(command, ReplayCommand):
        # Dead letters are read instead of the source.
        return ()
    CHECKS[ingest_of(placed).source.KIND](placed, command.interval, environ, storage_options)
    return () if table is not None else (f"{spec.table} does not exist at {placed.location}; the run creates it",)
