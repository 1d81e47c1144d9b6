"""Builds one DAG per table spec with a section `services.publish`. It publishes ready partitions in a Hive Metastore.

The DAG runs on its schedule and after each event of the table's asset. An event with `partitions` in its extra is a
signal that these partitions are ready. Pointers need no Spark; a spark-submit copies partitions older than
`archive_after` into separate files. Each partition that becomes visible emits an event of the asset
`hive://database/table`. A backfill republishes the partitions in its range. An empty trigger form starts a normal run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lakehouse.spec.table.publish import PublishSpec
from lakehouse.spec.table.table_spec import TableSpec
from lakehouse_airflow.assets import partitions_asset, table_asset
from lakehouse_airflow.compat import DAG, asset_or_time
from lakehouse_airflow.data_intervals import BACKFILL_DATES
from lakehouse_airflow.forms import publish_form
from lakehouse_airflow.operators import JOB_DOC
from lakehouse_airflow.paused_dags import creation_state
from lakehouse_airflow.publish import (
    ArchivePartitionsOperator,
    PublishPartitionsOperator,
    archive_due,
    signals_accepted,
)
from lakehouse_airflow.services import POOL as SPARK_POOL
from lakehouse_airflow.specs import publish_timetable


def publish_dag(spec: TableSpec, publish: PublishSpec, *, conf: Mapping[str, Any] | None = None, **dag: Any) -> DAG:
    """Build the DAG `publish.<table>`.

    Args:
        spec: Spec of the table.
        publish: Its section `services.publish`.
        conf: Spark properties of the job that copies partitions.
        dag: Additional arguments of Airflow's DAG: callbacks, deadlines, default_args.
    """
    table, by_clock = str(Path(spec.source).absolute()), publish_timetable(publish)
    schedule: Any = [table_asset(spec)]
    if by_clock is not None:
        schedule = asset_or_time(timetable=by_clock, assets=[table_asset(spec)])
    outlets = [partitions_asset(publish.target)]
    soon: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=30)}
    dag_id = f"publish.{spec.table}"
    with DAG(
        dag_id=dag_id,
        description=f"Publish partitions of {spec.table} as {publish.target} in the metastore",
        doc_md=f"{__doc__}\nPeriods are in the time zone {publish.timezone}. {BACKFILL_DATES}",
        schedule=schedule,
        # Backfills can republish partitions from this date on.
        start_date=datetime(2015, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        params=publish_form(),
        **{"tags": ["lakehouse", "publish"], **creation_state(dag_id), **dag},
    ) as made:
        published = PublishPartitionsOperator(
            task_id="publish",
            table=table,
            by_interval="interval" in publish.ready,
            signals="signal" in publish.ready,
            periods=publish,
            outlets=outlets,
            # A backfill ignores max_active_runs of the DAG on Airflow 3.
            max_active_tis_per_dag=1,
            **soon,
        )
        due = archive_due.override(trigger_rule="none_failed", pool=published.pool, **soon)(table)
        archive = ArchivePartitionsOperator.partial(
            task_id="archive",
            publish_task_id="publish",
            doc_md=JOB_DOC.format(verb="publish", action="run"),
            # No check is needed: the task `archive_due` has just opened the table and its publication.
            check=False,
            outlets=outlets,
            conf=dict(conf or {}),
            pool=SPARK_POOL,
            max_active_tis_per_dag=1,
            execution_timeout=timedelta(hours=6),
            **soon,
        ).expand(table=due)
        accepted = signals_accepted.override(trigger_rule="none_failed", pool=published.pool)(published.output)
        published >> due >> archive
        published >> accepted
    return made
