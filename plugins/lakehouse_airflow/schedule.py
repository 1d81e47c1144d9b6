"""The DAG `services.schedule`: one pass decides for all services and tables, and each job is one spark-submit.

    decide ──► run[0..n]      decide: pool lakehouse_scheduler; run: pool lakehouse_services
       └─────► send_alarms    new and resolved alarms, by the notifiers of alarms.yaml; pool lakehouse_scheduler

A table event starts a pass that inspects only the tables of its events. A scheduled pass inspects the tables that
changed since the last inspection. Decisions have their own pool, and many runs of this DAG may be active concurrently,
so long jobs never delay a decision.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.fleet import FleetPass, ServiceBatch
from lakehouse_airflow.alarms import send_alarms
from lakehouse_airflow.assets import TABLE_SCHEME, TABLES
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import (
    DAG,
    Asset,
    AssetAny,
    Context,
    CronTriggerTimetable,
    allowed_run_types,
    asset_or_time,
    run_state,
    task,
    triggering_events,
)
from lakehouse_airflow.forms import check_conf, schedule_form
from lakehouse_airflow.operators import JOB_DOC
from lakehouse_airflow.paused_dags import creation_state
from lakehouse_airflow.pools import SCHEDULE, SCHEDULER, SERVICES, slots_of
from lakehouse_airflow.refusals import noted_refusals
from lakehouse_airflow.services import POOL, ServiceOperator, spec_assets

log = logging.getLogger(__name__)

DAG_ID = SCHEDULE
_START = datetime(2026, 1, 1, tzinfo=UTC)
#: Airflow also counts runs with unfinished jobs. A pass must start even if many jobs are running.
_ACTIVE_RUNS = 100
#: States of a DAG run after which its jobs no longer start.
_ENDED = ("success", "failed")
_BATCH_NAME = (
    "{{ task.service }}: {{ (task.table if task.table is string else task.table | join(', ')) | truncate(180) }}"
)
_DOC = """One pass decides for all table services: it compares due services of all tables by deadline, priority and
benefit within budgets, quiet hours and the slots of the pool, and starts one `spark-submit` per batch.

After a commit to a table, a pass inspects this table. Every few minutes a pass inspects the tables that changed.
`lakehouse services explain --table namespace.table` shows why a service runs or waits.
"""
_DECIDE_DOC = """Decides without Spark which services run now on which tables.

The log names the tables whose storage was read, each decision with its reason, and the end time of each wait.
"""
_ALARMS_DOC = """Sends new and resolved alarms once with each notifier of `alarms.yaml`, many in one message.

Without notifiers it does nothing. The log contains the number of alarms per notifier; `lakehouse alarms list` shows
them.
"""
#: Spark properties of a deployment override the resources that a pass derives from predicted bytes.
_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "driver_memory": "spark.driver.memory",
        "executor_memory": "spark.executor.memory",
        "num_executors": "spark.executor.instances",
        "executor_cores": "spark.executor.cores",
    }
)


# parameters: the arguments of an Airflow DAG
def schedule_dag(
    *,
    schedule: str = "*/5 * * * *",
    horizon: str = "5m",
    start_date: datetime = _START,
    assets: Iterable[Asset] | None = None,
    arguments: Sequence[str] = (),
    retries: int = 3,
    timeout: timedelta = timedelta(hours=6),
    conf: Mapping[str, Any] | None = None,
    **dag: Any,
) -> DAG:
    """Build the DAG `services.schedule`.

    Args:
        schedule: Cron expression of the scheduled passes, in UTC.
        horizon: Time between two passes. A pass starts the jobs that are due before the next pass.
        start_date: Start of the schedule.
        assets: Assets whose events start a pass that inspects their tables. Default: the assets of the specs next to
            the DAGs.
        arguments: Additional arguments for `lakehouse services pass`, such as `--bytes-per-hour 500GB`.
        retries: Retries of each task.
        timeout: Timeout of each job.
        conf: Spark properties of the jobs. They override resources that a pass derives from predicted bytes.
        dag: Additional arguments of Airflow's DAG: callbacks, deadlines, tags.
    """
    watched = list(spec_assets() if assets is None else assets)
    clock: Any = CronTriggerTimetable(schedule, timezone="UTC")
    usual = {"max_active_runs": _ACTIVE_RUNS, "catchup": False, "tags": ["lakehouse", "service"]}
    settings = {**usual, **creation_state(DAG_ID), **dag}
    properties = dict(conf or {})
    with DAG(
        dag_id=DAG_ID,
        description="Decide for all services of all tables, and run them",
        doc_md=_DOC,
        schedule=asset_or_time(timetable=clock, assets=AssetAny(*watched, TABLES)),
        start_date=start_date,
        params=schedule_form(asset.name for asset in watched if asset.uri.startswith(TABLE_SCHEME)),
        **allowed_run_types("scheduled", "manual", "asset_triggered", "operator_triggered"),
        **settings,
    ) as made:
        soon = {"retries": retries, "retry_delay": timedelta(minutes=1)}
        words = ["--horizon", horizon, *text_list(arguments, "arguments")]
        jobs = decide_services.override(
            task_id="decide", pool=SCHEDULER.name, priority_weight=10, doc_md=_DECIDE_DOC, **soon
        )(words, sorted(properties))
        jobs >> send_alarms.override(pool=SCHEDULER.name, trigger_rule="all_done", doc_md=_ALARMS_DOC, **soon)()
        ServiceOperator.partial(
            task_id="run",
            map_index_template=_BATCH_NAME,
            doc_md=JOB_DOC.format(verb="<service>", action="run"),
            # No check is needed: the task `decide` has opened the tables.
            check=False,
            conf=properties,
            pool=POOL,
            retries=retries,
            retry_delay=timedelta(minutes=1),
            retry_exponential_backoff=2,
            max_retry_delay=timedelta(hours=1),
            execution_timeout=timeout,
            # The task's argument overrides the callbacks in `default_args`, so they are added.
            on_failure_callback=[release_failed, *_callbacks(settings.get("default_args"))],
        ).expand_kwargs(jobs)
    return made


@task
def decide_services(arguments: Sequence[str] = (), properties: Sequence[str] = (), **context: Any) -> list[Any]:
    """Task: run a scheduler pass, and return the arguments of ServiceOperator for each job."""
    with noted_refusals(context):
        return decided_jobs(context, arguments=arguments, properties=properties)


def decided_jobs(
    context: Context, *, arguments: Sequence[str] = (), properties: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run a scheduler pass, and return its jobs as arguments of ServiceOperator.

    Args:
        context: Airflow's context of the task.
        arguments: Additional arguments for `lakehouse services pass`.
        properties: Names of the Spark properties of the deployment, which replace derived resources.
    """
    check_conf(context)
    tables = looked_tables(context)
    slots = slots_of(SERVICES, None, os.environ)
    words = ["services", "pass", *(["--slots", str(slots)] if slots > 0 else [])]
    words += [word for table in tables for word in ("--table", table)]
    words += ["--skip-unknown"] if tables else []
    # The job ids start with the id of this run.
    words += ["--claim", f"{DAG_ID}/{context['run_id']}"] if context.get("run_id") else []
    fleet_pass = FleetPass.from_json(run_command([*words, *arguments, "--output", "json"]))
    log.info("looked at %d tables: %s", len(fleet_pass.looked), ", ".join(fleet_pass.looked) or "none changed")
    for decision in fleet_pass.decisions:
        state = "runs now" if decision.runs_now else f"waits until {decision.starts}" if decision.starts else "waits"
        log.info("%s %s: %s: %s: %s", decision.table, decision.service, state, decision.code, decision.reason)
    release_ended(fleet_pass.claims, context)
    return [_job(batch, properties) for batch in fleet_pass.batches]


def release_ended(claims: Sequence[str], context: Mapping[str, Any]) -> None:
    """Release the service runs that ended runs of this DAG chose but did not start. The next pass decides again."""
    ended = [claim for claim in claims if _has_ended(claim, context)]
    if ended:
        log.info("release the runs that did not begin before the end of %s", ", ".join(ended))
        run_command(["services", "release", *(word for claim in ended for word in ("--claim", claim))])


def release_failed(context: Mapping[str, Any]) -> None:
    """Callback for a job without further retries: release its service runs that did not start."""
    job, run_id = context["task"], context.get("run_id")
    if not isinstance(job, ServiceOperator) or not run_id:
        # If the process of a task ended, its callback has no job arguments. The claim then expires by itself.
        return
    named = (word for table in text_list(job.table, "table") for word in ("--table", table))
    claim = f"{DAG_ID}/{run_id}"
    log.info("release the runs of the failed job that did not begin: %s of %s", job.service, job.table)
    run_command(["services", "release", "--claim", claim, "--service", job.service, *named])


def _callbacks(arguments: Mapping[str, Any] | None) -> Sequence[Any]:
    """Return the failure callbacks in the DAG's `default_args`."""
    callbacks = (arguments or {}).get("on_failure_callback") or ()
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _has_ended(claim: str, context: Mapping[str, Any]) -> bool:
    dag, _, run = claim.partition("/")
    if dag != DAG_ID or not run:
        return False
    # The claim of an unknown run, which may belong to another Airflow deployment, expires by itself.
    return run_state(context, dag, run) in _ENDED


def looked_tables(context: Mapping[str, Any]) -> list[str]:
    """Return the tables that a run inspects, from its params or its asset events. Empty means all changed tables."""
    named = text_list((context.get("params") or {}).get("tables"), "the run's params: tables")
    if named:
        return list(named)
    return sorted({event.name for event in triggering_events(context) if event.uri.startswith(TABLE_SCHEME)})


def _job(batch: ServiceBatch, properties: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of ServiceOperator for a batch of tables."""
    resources = {name: getattr(batch.resources, name) for name, key in _PROPERTIES.items() if key not in properties}
    return {"service": batch.service, "table": list(batch.tables), **resources}
