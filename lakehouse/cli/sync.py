"""`lakehouse sync plan | run`: compare a table with its copy in a Hive Metastore and update the copy; without Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show
from lakehouse.cli.service_job import service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, UserError, nearest
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.sync import plan, report_of, sync
from lakehouse.platform.publish.sync_plan import TablePlan
from lakehouse.spec.contracts.job import JobReport

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
            show({"metastore": metastore.name, **asdict(done)}, given.output)
            return 0
        planned = plan(table, metastore, force=given.force)
        found: dict[str, Any] = {"metastore": metastore.name, **asdict(report_of(planned))}
        found["partitions"] = [row for t in planned.tables for row in _rows(t)]
        if given.output == "text":
            rest = len(found["partitions"]) - _SHOWN
            found["partitions"] = found["partitions"][:_SHOWN]
            found["more"] = f"{rest} partitions; --output json shows all" if rest > 0 else "-"
        show(found, given.output)
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


def _rows(plan: TablePlan) -> list[dict[str, Any]]:
    table = f"{plan.wanted.database}.{plan.wanted.name}"
    added = [("add", "/".join(partition.values), partition.location) for partition in plan.add]
    moved = [("alter", "/".join(partition.values), partition.location) for partition in plan.alter]
    gone = [("drop", name, None) for name in plan.drop]
    return [
        {"table": table, "do": verb, "partition": name, "location": where}
        for verb, name, where in (*added, *moved, *gone)
    ]
