"""Builds DAGs of table services: the task `due` decides without Spark, and each batch of tables is one spark-submit.

    due ──► run[0..n]      one mapped task per batch; a table that is not due starts no process

Users' DAGs import `due_batches` and `ServiceOperator`, or build a similar DAG with `service_dag`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lakehouse.errors import UserError
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.decisions import DueServices
from lakehouse.spec.job_command import JobCommand, ServiceCommand
from lakehouse.spec.table.services import BY_PARTITION, SERVICES, require_by_partition, service_spec
from lakehouse_airflow.assets import TABLE_SCHEME, table_asset
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import (
    DAG,
    RETRY_BACKOFF,
    Asset,
    AssetAny,
    Context,
    CronDataIntervalTimetable,
    asset_or_time,
    task,
)
from lakehouse_airflow.data_intervals import (
    ASSET_TRIGGERED,
    is_backfill,
    params_interval,
    required_interval,
    whole_periods,
)
from lakehouse_airflow.forms import check_conf, service_form
from lakehouse_airflow.operators import JOB_DOC, LakehouseOperator
from lakehouse_airflow.paused_dags import creation_state
from lakehouse_airflow.refusals import noted_refusals
from lakehouse_airflow.rescheduling import reschedule
from lakehouse_airflow.specs import dags_folder, load_specs, spec_directories

log = logging.getLogger(__name__)

#: Pool for table services. It is separate, so that services never occupy slots of ingestion.
POOL = "lakehouse_services"
#: Name of a batch in the UI: its tables. Airflow stores at most 250 characters.
_BATCH_NAME = "{{ (task.table if task.table is string else task.table | join(', ')) | truncate(200) }}"
_DUE_DOC = """Decides without Spark which tables of the catalog need {service} now, and puts them into batches.

The log names each table with the decision and its reason. If no table is due, the task `run` is skipped. A dry run
writes the plans to this log.
"""


class ServiceOperator(LakehouseOperator):
    """Run a table service on one table, or on several catalog tables, as one spark-submit.

    The data interval of a backfill or of the run's params limits compaction and clustering to the partitions of its
    days or hours. With `by_interval`, the interval of every run limits them. If there is no work, the task succeeds
    with the status `nothing_to_do`, or is skipped with `skip_if_nothing_to_do`.

    Args:
        service: Name of the service.
        table: Catalog name, table spec or location of one table, or a list of catalog names.
        force: Run even if the service is not due.
        kwargs: Arguments of LakehouseOperator.
    """

    def __init__(self, *, service: str, table: str | Sequence[str], force: bool = False, **kwargs: Any) -> None:
        if service not in SERVICES:
            raise UserError(f"unknown service {service!r}; known are {', '.join(SERVICES)}", service=service)
        if kwargs.get("by_interval") and service not in BY_PARTITION:
            raise UserError(
                f"by_interval=True: {service} works on whole tables; {', '.join(BY_PARTITION)} take a data interval",
                service=service,
            )
        kwargs.setdefault("pool", POOL)
        super().__init__(verb=service, action="run", table=table, **kwargs)
        self.service = service
        self.force = force

    def interval(self, context: Context) -> tuple[str, str] | None:
        """Return the interval whose partitions the run processes, or None for whole tables."""
        if self.by_interval and self.service in BY_PARTITION:
            return required_interval(context)
        return service_interval(self.service, context)

    def _command(self, context: Context) -> JobCommand:
        command = super()._command(context)
        assert isinstance(command, ServiceCommand), "the verb is a service"
        # Forced as in `due_tables`: after one day of a backfill was clustered, the next day may not be due.
        requested = bool(command.partitions) or service_interval(self.service, context) is not None
        return replace(command, force=True) if requested else command


def service_interval(service: str, context: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the data interval whose partitions a service run processes, or None for whole tables.

    The interval of a backfill is rounded to whole days, or to whole hours if it is shorter than a day, because
    partitions are days or hours. With a schedule at 3 o'clock, the interval from the 1st to the 2nd becomes the 1st.
    """
    requested = params_interval(context)
    if service not in BY_PARTITION or not (requested or is_backfill(context)):
        return None
    return requested or whole_periods(*required_interval(context))


def is_requested(context: Mapping[str, Any]) -> bool:
    """Return whether a user or a backfill started the run, instead of the schedule or an asset event."""
    run_type = str(getattr(context.get("dag_run"), "run_type", "manual")).rpartition(".")[2].lower()
    return run_type not in ("scheduled", *ASSET_TRIGGERED)


def due_tables(service: str, context: Context, *, arguments: Sequence[str] = ()) -> list[list[str]]:
    """Decide on which tables a service runs now, record the decisions, and return the tables in batches.

    Tables in the run's params and runs of a backfill are requests: the service runs even if it is not due. If a
    requested run must wait for another run, the task is rescheduled. A dry run returns no batches.

    Args:
        service: Name of the service.
        context: Airflow's context of the task.
        arguments: Additional arguments for `lakehouse services due`, such as `--bytes-per-hour 500GB`.
    """
    check_conf(context)
    params = context.get("params") or {}
    _check_partitions(service, context, params)
    tables = text_list(params.get("tables"), "the run's params: tables")
    named = [word for name in tables for word in ("--table", name)]
    forced = params.get("force") or params.get("partitions") or service_interval(service, context) is not None
    more = text_list(arguments, "arguments")
    words = ["services", "due", "--service", service, *named, *(["--force"] if forced else []), *more]
    due = DueServices.from_json(run_command([*words, "--output", "json"]))
    for decision in due.decisions:
        state = "runs now" if decision.runs_now else "waits"
        log.info("%s: %s: %s: %s", decision.table, state, decision.code, decision.reason)
    batches = [list(batch) for batch in due.batches.get(service, ())]
    if params.get("dry_run"):
        for name in (name for batch in batches for name in batch):
            log.info("%s would do:\n%s", name, run_command([service, "plan", "--dry-run", "--table", name]))
        return []
    if forced:
        _wait_for_requested(due, context)
    return batches


def _check_partitions(service: str, context: Context, params: Mapping[str, Any]) -> None:
    """Raise UserError if the run's params select partitions, but the service only works on whole tables."""
    # In a user's DAG the interval may be meant for another service. In this service's own DAG it would be ignored.
    own_dag = getattr(context.get("dag"), "dag_id", "") == f"services.{service}"
    if own_dag and (params.get("partitions") or params_interval(context)):
        require_by_partition(service_spec(service))


def _wait_for_requested(due: DueServices, context: Context) -> None:
    """Reschedule the task if a requested table must wait.

    A run for another day of the same backfill may work on this table.
    """
    waiting = [decision for decision in due.decisions if decision.requested and not decision.runs_now]
    if waiting:
        reasons = "; ".join(f"{decision.table}: {decision.reason}" for decision in waiting)
        raise reschedule(context, f"a requested run must wait: {reasons}")


@task
def due_batches(service: str, arguments: Sequence[str] = (), decide: bool = True, **context: Any) -> list[list[str]]:
    """Task: return the batches of tables that a service runs on now (see `due_tables`).

    If `decide` is False, scheduled runs return no batches, because `services.schedule` decides about them. Only
    requests and backfills run here.

    If no table is due, Airflow skips the task that is mapped over the batches. A downstream task that must run anyway
    needs `trigger_rule="none_failed"`.
    """
    if not decide and not is_requested(context):
        log.info("the DAG services.schedule decides about %s; trigger this DAG or create a backfill", service)
        return []
    with noted_refusals(context):
        return due_tables(service, context, arguments=arguments)


# parameters: the arguments of an Airflow DAG
def service_dag(
    service: str,
    *,
    schedule: str,
    start_date: datetime,
    doc: str = "",
    assets: Iterable[Asset] | None = None,
    arguments: Sequence[str] = (),
    decide: bool = True,
    retries: int = 3,
    timeout: timedelta = timedelta(hours=6),
    conf: Mapping[str, Any] | None = None,
    **dag: Any,
) -> DAG:
    """Build the DAG of one service for all tables of the catalog.

    Args:
        service: Name of the service.
        schedule: Cron expression in UTC.
        start_date: Start of the first data interval.
        doc: Markdown documentation of the DAG.
        assets: Assets whose events also start the DAG. Default: none. Such a run inspects all tables.
        arguments: Additional arguments for `lakehouse services due`.
        decide: Whether scheduled runs decide. If False, `services.schedule` decides, and the schedule only defines the
            days for backfills.
        retries: Retries of each task.
        timeout: Timeout of each run task.
        conf: Spark properties of the jobs.
        dag: Additional arguments of Airflow's DAG: callbacks, deadlines, tags.
    """
    watched = list(assets or ())
    timetable: Any = CronDataIntervalTimetable(schedule, timezone="UTC")
    if watched:
        timetable = asset_or_time(timetable=timetable, assets=AssetAny(*watched))
    dag_id = f"services.{service}"
    usual: dict[str, Any] = {"max_active_runs": 1, "catchup": False, "tags": ["lakehouse", "service"]}
    settings = {**usual, **creation_state(dag_id), **dag}
    with DAG(
        dag_id=dag_id,
        description=f"{service} of the tables that are due",
        doc_md=doc,
        schedule=timetable,
        start_date=start_date,
        params=service_form(service, _tables_of(watched or spec_assets())),
        **settings,
    ) as made:
        soon = {"retries": retries, "retry_delay": timedelta(minutes=1)}
        batches = due_batches.override(task_id="due", pool=POOL, doc_md=_DUE_DOC.format(service=service), **soon)(
            service, list(text_list(arguments, "arguments")), decide
        )
        ServiceOperator.partial(
            task_id="run",
            service=service,
            map_index_template=_BATCH_NAME,
            doc_md=JOB_DOC.format(verb=service, action="run"),
            # No check is needed: the task `due` has just opened the tables.
            check=False,
            conf=dict(conf or {}),
            pool=POOL,
            retries=retries,
            retry_delay=timedelta(minutes=1),
            retry_exponential_backoff=RETRY_BACKOFF,
            max_retry_delay=timedelta(hours=1),
            execution_timeout=timeout,
        ).expand(table=batches)
    return made


def spec_assets(directory: Path | None = None) -> tuple[Asset, ...]:
    """Return the assets of tables whose specs are below `directory`, by default in the DAGs folder."""
    folders = spec_directories(directory or dags_folder())
    return tuple(table_asset(spec) for spec in load_specs(folders).good)


def _tables_of(assets: Iterable[Asset]) -> list[str]:
    return [asset.name for asset in assets if asset.uri.startswith(TABLE_SCHEME)]
