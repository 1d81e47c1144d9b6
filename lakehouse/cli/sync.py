"""`lakehouse sync plan | run`: compare a table with its copy in a Hive Metastore and update the copy; without Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.cli.truncation import note_of_more
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.sync import plan, report_of, sync
from lakehouse.platform.publish.sync_plan import TablePlan
from lakehouse.spec.contracts.job import JobReport
from lakehouse.spec.contracts.sync import PartitionChange, SyncedPartition, SyncPreview, SyncResult

logger = logging.getLogger(__name__)
_SHOWN = 20


def show_plan(given: Given) -> None:
    """Print the differences between a table and its copy in a Hive Metastore."""
    table = open_table(given.table, given.option)
    with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
        planned = plan(table, metastore, force=given.force)
        report = report_of(planned)
        partitions = tuple(row for table_plan in planned.tables for row in _partitions(table_plan))
        shown = partitions[:_SHOWN] if given.output == "text" else partitions
        preview = SyncPreview(metastore=metastore.name, tables=report.tables, skipped=report.skipped, partitions=shown)
        show_document(preview, given.output)
    if len(shown) < len(partitions):
        note_of_more(len(shown), "partitions", "--output json shows all", total=len(partitions))


def run_sync(given: Given) -> None:
    """Update the copy of a table in a Hive Metastore."""
    table = open_table(given.table, given.option)
    with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
        done = sync(table, metastore, force=given.force)
        show_document(SyncResult(metastore=metastore.name, tables=done.tables, skipped=done.skipped), given.output)


def synced(report: JobReport, location: str, options: Mapping[str, str], access: Mapping[str, str]) -> JobReport:
    """Sync an ingested table to the metastore; an error becomes a warning in the report.

    The rows are committed, so an error of the metastore must not fail the job. The next run syncs all changes.
    """
    try:
        table = Table.open(location, options=options, storage_options=access)
        with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
            sync(table, metastore)
    except Exception as error:
        unknown = not isinstance(error, LakehouseError)
        logger.warning("table %s: the sync to the metastore failed: %s", report.table, error, exc_info=unknown)
        return replace(report, warning=f"metastore sync: {type(error).__name__}: {error}")
    return report


def _partitions(plan: TablePlan) -> list[SyncedPartition]:
    table = f"{plan.wanted.database}.{plan.wanted.name}"
    added = [(PartitionChange.ADD, "/".join(partition.values), partition.location) for partition in plan.add]
    moved = [(PartitionChange.ALTER, "/".join(partition.values), partition.location) for partition in plan.alter]
    dropped = [(PartitionChange.DROP, name, None) for name in plan.drop]
    return [
        SyncedPartition(table=table, change=change, partition=name, location=location)
        for change, name, location in (*added, *moved, *dropped)
    ]
