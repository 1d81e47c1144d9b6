"""The DAG `lakehouse.doctor`: checks the deployment every day and fails with the list of problems."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lakehouse.spec.contracts.dag_states import DagStates
from lakehouse.spec.contracts.doctor import CheckState, DoctorReport
from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse_airflow.compat import DAG, AirflowFailException, CronDataIntervalTimetable, task
from lakehouse_airflow.doctor import examine
from lakehouse_airflow.paused_dags import creation_state
from lakehouse_airflow.pools import DAGS_KEY, DEFAULT_POOL, DOCTOR, POOLS_KEY

log = logging.getLogger(__name__)

_DOC = (
    "Checks the requirements of the deployment: pools, scheduler, paused DAGs, Spark connection and environment, "
    "versions, catalog, metastore, storage, clocks. The task fails with the failed checks and their corrections; its "
    "log contains all results.\n\nThe DAG runs in `default_pool`, so that it also works when the pools of "
    "lakehouse are missing. "
    "`lakehouse doctor` runs the same checks in a shell."
)
_LEVELS = {CheckState.FAILED: logging.ERROR, CheckState.WARNING: logging.WARNING}


def doctor_dag(*, schedule: str = "@daily", timeout: timedelta = timedelta(minutes=30), **dag: Any) -> DAG:
    """Build the DAG `lakehouse.doctor`.

    Args:
        schedule: Cron expression in UTC.
        timeout: Timeout of the task.
        dag: Additional arguments of Airflow's DAG: callbacks, default_args, tags.
    """
    settings = {"tags": ["lakehouse", "doctor"], **creation_state(DOCTOR), **dag}
    with DAG(
        dag_id=DOCTOR,
        description="Check the requirements of the deployment, and suggest corrections",
        doc_md=_DOC,
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        **settings,
    ) as made:
        check_deployment.override(task_id="doctor", pool=DEFAULT_POOL, execution_timeout=timeout)()
    return made


# The log contains a line per check, so Airflow need not log the returned mapping.
@task(show_return_value_in_logs=False)
def check_deployment(**context: Any) -> dict[str, Any]:
    """Task: log all results, and fail if checks failed. The return value is a DoctorReport."""
    report = examine(os.environ, pools=pools_of_run(context), dags=dags_of_run(context), in_task=True)
    for check in report.checks:
        advice = f" What to do: {check.advice}" if check.advice else ""
        log.log(_LEVELS.get(check.state, logging.INFO), "%s: %s: %s%s", check.name, check.state, check.found, advice)
    if report.failures:
        # Airflow does not store the return value of a failed task, so the report is stored here.
        context["ti"].xcom_push(key="return_value", value=report.to_mapping())
        raise AirflowFailException(failure_text(report))
    return report.to_mapping()


def pools_of_run(context: Mapping[str, Any]) -> PoolFacts | None:
    """Return the pools that the scheduler stored in the run's configuration, or None if it stored none."""
    facts = _given(context, POOLS_KEY)
    return PoolFacts.from_mapping(facts) if facts else None


def dags_of_run(context: Mapping[str, Any]) -> DagStates | None:
    """Return the DAG states that the scheduler stored in the run's configuration, or None if it stored none."""
    facts = _given(context, DAGS_KEY)
    return DagStates.from_mapping(facts) if facts else None


def _given(context: Mapping[str, Any], key: str) -> Any:
    return (getattr(context.get("dag_run"), "conf", None) or {}).get(key)


def failure_text(report: DoctorReport) -> str:
    """Format the failed checks: a line with their number, then one line per check."""
    lines = [f"{len(report.failures)} of {len(report.checks)} checks failed:"]
    lines += [f"{check.name}: {check.found} What to do: {check.advice}" for check in report.failures]
    return "\n".join(lines)
