"""Builds one DAG per table spec with a section `ingest`.

Each run is one spark-submit, and its commit is one asset event.

A run ingests the files of its data interval if the spec's path contains `{start:...}` or `{end:...}`. Otherwise it
ingests all files that are not yet committed. A run can be repeated, because committed files are not ingested again.
Backfills work for every table with a schedule.

A spec with `stream` has consecutive runs. Each run is one job that commits repeatedly until `run_for` has passed. After
a failed run the next run continues from the last commit. With `watch: deferred` a trigger watches the job, and the task
occupies no slot.

If the source is other tables (`source: table`) and there is no schedule, the DAG runs after each commit to a source
table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lakehouse.spec.command_check import REPLAYED
from lakehouse.spec.job_command import STREAM
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.stream import DEFERRED
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.assets import TABLES, table_asset
from lakehouse_airflow.compat import DAG, NO_START_DATE, RETRY_BACKOFF, Asset, AssetAny, CronDataIntervalTimetable
from lakehouse_airflow.data_intervals import BACKFILL_DATES
from lakehouse_airflow.forms import ingest_form
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.paused_dags import creation_state
from lakehouse_airflow.specs import timetable
from lakehouse_airflow.stream import StreamOperator

#: With this schedule Airflow starts a run as soon as the previous run has ended.
_CONTINUOUS = "@continuous"
_START = datetime(2026, 1, 1, tzinfo=UTC)
#: Number of consecutive failed runs after which Airflow pauses the DAG of a stream.
_MAX_FAILED_RUNS = 5


def ingest_dag(
    spec: TableSpec,
    ingest: IngestSpec,
    *,
    conf: Mapping[str, Any] | None = None,
    sources: Sequence[Asset] = (),
    **dag: Any,
) -> DAG:
    """Build the DAG `ingest.<table>`, or `ingest.<table>.<input>` for the spec of an input.

    Args:
        spec: Spec of the table.
        ingest: Its section `ingest` with the schedule, the pool, retries and Spark properties.
        conf: Spark properties that the spec does not set.
        sources: Assets of the source tables. If there is no schedule, each event of a source table starts a run.
        dag: Additional arguments of Airflow's DAG: callbacks, deadlines, default_args.
    """
    dag_id = f"ingest.{spec.ingestion_name}"
    with DAG(
        dag_id=dag_id,
        description=f"{ingest.operation} {ingest.source.description} into {spec.table}",
        doc_md=f"{__doc__}\n{_described(spec)}{_zone_doc(ingest)}",
        schedule=_schedule(spec, ingest, sources),
        start_date=ingest.start_date or (NO_START_DATE if ingest.stream is None else _START),
        catchup=ingest.catchup,
        max_active_runs=1,
        params=ingest_form(snapshots=ingest.database is not None, replays=ingest.source.KIND in REPLAYED),
        **{"tags": ["lakehouse", "ingest"], **_of_stream(ingest), **creation_state(dag_id), **dag},
    ) as made:
        operator, settings = _operator(ingest)
        operator(
            task_id="ingest",
            verb="ingest",
            action="run" if ingest.stream is None else STREAM,
            table=str(Path(spec.source).absolute()),
            input=spec.input,
            by_interval=ingest.is_by_interval,
            conf={**(conf or {}), **ingest.spark},
            outlets=[table_asset(spec), *([TABLES] if spec.is_template else [])],
            # Allows one run per table at a time. On Airflow 3 a backfill has a limit of active runs of its own and
            # ignores the limit of the DAG, so the task has it, too. On 2.11 the DAG's limit holds for backfills.
            max_active_tis_per_dag=1,
            pool=ingest.pool,
            retries=ingest.retries,
            retry_delay=timedelta(seconds=ingest.retry_delay_s),
            retry_exponential_backoff=RETRY_BACKOFF,
            max_retry_delay=timedelta(hours=1),
            execution_timeout=timedelta(seconds=ingest.timeout_s + _run_for_s(ingest)),
            **settings,
        )
    return made


def _of_stream(ingest: IngestSpec) -> dict[str, Any]:
    """Return DAG arguments for a stream. A stream that fails repeatedly is paused instead of being started forever."""
    return {} if ingest.stream is None else {"max_consecutive_failed_dag_runs": _MAX_FAILED_RUNS}


def _operator(ingest: IngestSpec) -> tuple[type[LakehouseOperator], dict[str, Any]]:
    """Return the operator class of an ingestion, and the arguments that only this class takes."""
    if ingest.stream is None or ingest.stream.watch != DEFERRED:
        return LakehouseOperator, {}
    return StreamOperator, {"run_for_s": ingest.stream.run_for_s, "overdue_s": ingest.timeout_s}


def _run_for_s(ingest: IngestSpec) -> int:
    return 0 if ingest.stream is None else ingest.stream.run_for_s


def _described(spec: TableSpec) -> str:
    key = f", key `{', '.join(spec.record_key)}`" if spec.record_key else ""
    return f"Table `{spec.table}` at `{spec.location}`{key}."


def _zone_doc(ingest: IngestSpec) -> str:
    """Return a sentence about the time zone of data intervals, or an empty string if the DAG has no schedule."""
    if ingest.schedule is None:
        return ""
    return f" Data intervals are in the time zone {ingest.timezone}. {BACKFILL_DATES}"


def _schedule(
    spec: TableSpec, ingest: IngestSpec, sources: Sequence[Asset]
) -> CronDataIntervalTimetable | AssetAny | str | None:
    if ingest.stream is not None:
        return _CONTINUOUS
    declared = timetable(spec)
    # Runs that asset events start have no data interval.
    if declared is not None or ingest.is_by_interval or not sources:
        return declared
    return AssetAny(*sources)
