"""`lakehouse export`: the views of other formats, and complete copies of the newest version.

`iceberg` and `delta` run the service for one format, whether the table declares it or not. `parquet` and `hudi` write
files that do not depend on the table.
"""

from __future__ import annotations

from lakehouse.cli.arguments import job_command
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.progress import terminal_progress
from lakehouse.cli.table import open_table
from lakehouse.cli.table_service import run_service_job
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.export.hudi_copy import export_hudi
from lakehouse.platform.export.parquet_snapshot import export_parquet
from lakehouse.spec.contracts.tables import ExportedSnapshot
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.options.export import DELTA, EXPORT_FORMATS, ICEBERG


def export_iceberg(given: Given) -> int:
    """Export to Iceberg."""
    return _export(given, ICEBERG)


def export_delta(given: Given) -> int:
    """Export to Delta."""
    return _export(given, DELTA)


def export_parquet_files(given: Given) -> None:
    """Write the newest version to plain Parquet files."""
    table = open_table(given.table)
    with terminal_progress():
        result = export_parquet(table.refresh(), table.services.policies, open_storage(_target(given)))
    _show(table, result.location, result.instant, result.rows, given)


def export_table_copy(given: Given) -> None:
    """Copy the newest version into another table."""
    table = open_table(given.table)
    with terminal_progress():
        result = export_hudi(table.refresh(), Env(storage=open_storage(_target(given))))
    _show(table, result.location, result.instant, result.rows, given)


def _target(given: Given) -> str:
    if not given.target:
        raise UserError("the export needs --target, an empty folder")
    return str(given.target)


# parameters: the fields of the result
def _show(table: Table, location: str, instant: str, rows: int, given: Given) -> None:
    show_document(ExportedSnapshot(table=table.name, location=location, instant=instant, rows=rows), given.output)


def _export(given: Given, name: str) -> int:
    return run_service_job(job_command(given, ServiceCommand, [f"{EXPORT_FORMATS}={name}"]))
