"""`lakehouse sync plan | run`: what a Hive Metastore lacks of a table, and telling it; without Spark."""

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
    """Run one command of this room."""
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
        told: dict[str, Any] = {"metastore": metastore.name, **asdict(report_of(planned))}
        told["partitions"] = [row for t in planned.tables for row in _rows(t)]
        if given.output == "text":
            rest = len(told["partitions"]) - _SHOWN
            told["partitions"] = told["partitions"][:_SHOWN]
            told["more"] = f"{rest} partitions; --output json shows all" if rest > 0 else "-"
        show(told, given.output)
    return 0


def synced(report: JobReport, location: str, options: Mapping[str, str], access: Mapping[str, str]) -> JobReport:
    """Tell the metastore of the table that was ingested into; what goes wrong is a warning in the report.

    The rows are committed: nothing that a metastore does may make a failure of that, and the next run tells it all.
    """
    try:
        table = Table.open(location, options=options, storage_options=access)
        with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
            sync(table, metastore)
    except Exception as error:
        unknown = not isinstance(error, LakehouseError)
        logger.warning("table %s: the metastore was not told: %s", report.table, error, exc_info=unknown)
        return replace(report, warning=f"metastore sync: {type(error).__name__}: {error}")
    return report


def _rows(told: TablePlan) -> list[dict[str, Any]]:
    table = f"{told.wanted.database}.{told.wanted.name}"
    added = [("add", "/".join(partition.values), partition.location) for partition in told.add]
    moved = [("alter", "/".join(partition.values), partition.location) for partition in told.alter]
    gone = [("drop", name, None) for name in told.drop]
    return [
        {"table": table, "do": verb, "partition": name, "location": where}
        for verb, name, where in (*added, *moved, *gone)
    ]
