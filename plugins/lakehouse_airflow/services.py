"""Table services as DAGs: what is due is found out without Spark, and each batch of tables is one spark-submit.

    due ──► run[0..n]      one mapped task per batch; a table that is not due costs nothing

Authors of other DAGs import `due_batches` and `ServiceOperator`, or make a DAG like those here with `service_dag`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetAny, AssetOrTimeSchedule, Context, CronDataIntervalTimetable, Param, task
from airflow.sdk.exceptions import AirflowFailException

from lakehouse.errors import UserError
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.job import JobCommand
from lakehouse.spec.services import SERVICES
from lakehouse_airflow.assets import table_asset
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.data_intervals import is_backfill, params_interval, required_interval, whole_days
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.rescheduling import reschedule
from lakehouse_airflow.specs import dags_folder, load_specs, spec_directories

log = logging.getLogger(__name__)

#: Services have slots of their own, so that they never take those of ingestion.
POOL = "lakehouse_services"
#: Services that a data interval narrows to the partitions of its days.
BY_INTERVAL = ("compaction", "clustering")
_DATE = {"type": ["null", "string"], "format": "date-time"}
PARAMS = {
    "tables": Param(
        [], type="array", items={"type": "string"}, title="Tables", description="namespace.table, one per line; all."
    ),
    "partitions": Param(
        [], type="array", items={"type": "string"}, title="Partitions", description="Only these, where it can be told."
    ),
    "interval_start": Param(None, **_DATE, title="Interval start", description="Partitions of these days only; UTC."),
    "interval_end": Param(None, **_DATE, title="Interval end", description="The first moment after them; UTC."),
    "dry_run": Param(False, type="boolean", title="Dry run", description="Log what would be done, and do nothing."),
    "force": Param(False, type="boolean", title="Force", description="Run where it is not due, too."),
    "options": Param({}, type="object", title="Options", description="hoodie.* options of this run only."),
}


class ServiceOperator(LakehouseOperator):
    """Run one table service on one table, or on several tables of the catalog, as one spark-submit.

    `table` is a name in the catalog, a spec or a location, or a list of names. The data interval of a backfill, or of
    the run's params, narrows the services that can be narrowed, with `by_interval` that of every run; other runs look
    at whole tables. `force` runs what is not due. Without work the task succeeds with the status `nothing_to_do`; it is
    skipped with `skip_if_nothing_to_do`.
    """

    def __init__(self, *, service: str, table: str | Sequence[str], force: bool = False, **kwargs: Any) -> None:
        if service not in SERVICES:
            raise UserError(f"unknown service {service!r}; known are {', '.join(SERVICES)}", service=service)
        if kwargs.get("by_interval") and service not in BY_INTERVAL:
            raise UserError(
                f"by_interval=True: {service} works on whole tables; {' and '.join(BY_INTERVAL)} take a data interval",
                service=service,
            )
        kwargs.setdefault("pool", POOL)
        super().__init__(verb=service, action="run", table=table, **kwargs)
        self.service = service
        self.force = force

    def interval(self, context: Context) -> tuple[str, str] | None:
        """Return the interval of a backfill or of the params, for the services that know what to do with it."""
        if self.by_interval and self.service in BY_INTERVAL:
            return required_interval(context)
        return service_interval(self.service, context)

    def _command(self, context: Context) -> JobCommand:
        command = super()._command(context)
        # As in `due_tables`: after one day of a backfill was clustered, the next one is hardly due, and asked for.
        asked = bool(command.partitions) or service_interval(self.service, context) is not None
        return replace(command, force=True) if asked else command


def service_interval(service: str, context: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the data interval that narrows a run of a service, None for whole tables.

    That of a backfill is of whole days, as partitions are: of a schedule at 3 o'clock, the interval from the 1st to the
    2nd is the 1st, and not both.
    """
    given = params_interval(context)
    if service not in BY_INTERVAL or not (given or is_backfill(context)):
        return None
    return given or whole_days(*required_interval(context))


def due_tables(service: str, context: Context, *, arguments: Sequence[str] = ()) -> list[list[str]]:
    """Decide and record which tables a service runs on now; return them in batches, empty for a dry run.

    `arguments` are more words for `lakehouse services due`, such as `--bytes-per-hour 500GB`. What the run's params ask
    for, and what a backfill asks for, runs whether it is due or not.
    """
    params = context.get("params") or {}
    tables = text_list(params.get("tables"), "the run's params: tables")
    named = [word for name in tables for word in ("--table", name)]
    forced = params.get("force") or params.get("partitions") or service_interval(service, context) is not None
    more = text_list(arguments, "arguments")
    words = ["services", "due", "--service", service, *named, *(["--force"] if forced else []), *more]
    found = json.loads(run_command([*words, "--output", "json"]))
    for decision in found["decisions"]:
        log.info("%s: %s: %s", decision["table"], "runs now" if decision["runs now"] else "waits", decision["why"])
    batches: list[list[str]] = [list(batch) for batch in found["batches"][service]]
    waiting = [d for d in found["decisions"] if forced and d["asked for"] and not d["runs now"]]
    if not params.get("dry_run"):
        if waiting:
            # Nobody else does it: a run of another day of the same backfill may be at this table.
            told = "; ".join(f"{decision['table']}: {decision['why']}" for decision in waiting)
            raise reschedule(context, f"what was asked for cannot run yet: {told}")
        return batches
    for name in (name for batch in batches for name in batch):
        log.info("%s would do:\n%s", name, run_command([service, "plan", "--dry-run", "--table", name]))
    return []


@task
def due_batches(service: str, arguments: Sequence[str] = (), **context: Any) -> list[list[str]]:
    """Task: the batches of tables that a service is to run on now (see `due_tables`).

    Where nothing is due, Airflow skips the task that is mapped over them. A task that follows it and is to run all the
    same needs `trigger_rule="none_failed"`.
    """
    try:
        return due_tables(service, context, arguments=arguments)
    except UserError as error:
        raise AirflowFailException(str(error)) from error


def service_dag(
    service: str,
    *,
    schedule: str,
    start_date: datetime,
    doc: str = "",
    assets: Iterable[Asset] | None = None,
    arguments: Sequence[str] = (),
    retries: int = 3,
    timeout: timedelta = timedelta(hours=6),
    conf: Mapping[str, Any] | None = None,
    **dag: Any,
) -> DAG:
    """Build the DAG of one service for all tables of the catalog.

    It runs by the cron expression `schedule` and whenever one of `assets` has an event (default: the assets of the
    specs beside the DAGs). `arguments` go to `lakehouse services due`; `conf` to Spark; `dag` to Airflow's DAG:
    callbacks, deadlines, tags.
    """
    watched = list(spec_assets() if assets is None else assets)
    timetable: Any = CronDataIntervalTimetable(schedule, timezone="UTC")
    if watched:
        timetable = AssetOrTimeSchedule(timetable=timetable, assets=AssetAny(*watched))
    settings = {"max_active_runs": 1, "catchup": False, "tags": ["lakehouse", "service"], **dag}
    with DAG(
        dag_id=f"services.{service}",
        description=f"{service} of the tables that are due",
        doc_md=doc,
        schedule=timetable,
        start_date=start_date,
        params=PARAMS,
        **settings,
    ) as made:
        soon = {"retries": retries, "retry_delay": timedelta(minutes=1)}
        batches = due_batches.override(task_id="due", pool=POOL, **soon)(
            service, list(text_list(arguments, "arguments"))
        )
        ServiceOperator.partial(
            task_id="run",
            service=service,
            conf=dict(conf or {}),
            pool=POOL,
            retries=retries,
            retry_delay=timedelta(minutes=1),
            retry_exponential_backoff=2,
            max_retry_delay=timedelta(hours=1),
            execution_timeout=timeout,
        ).expand(table=batches)
    return made


def spec_assets(directory: Path | None = None) -> tuple[Asset, ...]:
    """Return the assets of the tables whose specs stand beside the DAGs, or below a directory."""
    folders = spec_directories(directory or dags_folder())
    return tuple(table_asset(spec) for spec in load_specs(folders).good)
