"""`lakehouse sync plan | run`: compare a table with its copy in a Hive Metastore and update the copy; without Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show_document
from lakehouse.cli.service_job import service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, UserError, nearest
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.sync import plan, report_of, sync
from lakehouse.platform.publish.sync_plan import TablePlan
from lakehouse.spec.contracts.job import JobReport
from lakehouse.spec.contracts.sync import PartitionChange, SyncedPartition, SyncPreview, SyncResult

logger = logging.getLogger(__name__)
_VERBS = ("plan", "run")
_SHOWN = 20


def sync_command(words: Sequence[str]) -> int:
    """Run `sync plan` or `sync run`."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        raise UserError(f"lakehouse sync {verb!r} is unknown; verbs are {', '.join(_VERBS)}.{nearest(verb, _VERBS)}")
    parser = service_parser(f"sync {verb}")
    parser.add_argument("--force", action="store_true", help="list the table instead of trusting its statistics")
    given = parser.parse_args(words[2:])
    table = open_table(given.table, option_pairs(given.option))
    with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
        if verb == "run":
            done = sync(table, metastore, force=given.force)
            show_document(SyncResult(metastore=metastore.name, tables=done.tables, skipped=done.skipped), given.output)
            return 0
        planned = plan(table, metastore, force=given.force)
        report = report_of(planned)
        partitions = tuple(row for table_plan in planned.tables for row in _partitions(table_plan))
        rest = len(partitions) - _SHOWN if given.output == "text" else 0
        shown = partitions[:_SHOWN] if rest > 0 else partitions
        preview = SyncPreview(metastore=metastore.name, tables=report.tables, skipped=report.skipped, partitions=shown)
        show_document(preview, given.output)
        if rest > 0:
            print(f"and {rest} partitions; --output json shows all")
    return 0


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
