"""One DAG per table spec that declares `services.publish`: its partitions appear in a Hive Metastore when ready.

It runs by the clock and whenever the table's asset has an event. An event with `partitions` in its extra is a signal:
these are ready. Pointers need no Spark; partitions that are old enough are copied into files of their own by a
spark-submit. Each partition that appears is an event of the asset `hive://database/table`. A backfill publishes the
partitions of its range again. Trigger it with a form: partitions, interval, force, newest version, dry run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, Param, get_parsing_context

from lakehouse.spec.publish import PublishSpec
from lakehouse.spec.table import TableSpec
from lakehouse_airflow.assets import partitions_asset, table_asset
from lakehouse_airflow.publish import (
    ArchivePartitionsOperator,
    PublishPartitionsOperator,
    archive_due,
    signals_accepted,
)
from lakehouse_airflow.services import POOL as SPARK_POOL
from lakehouse_airflow.specs import load_specs, publish_timetable, spec_directories

DATE = {"type": ["null", "string"], "format": "date-time"}
FLAG = {"type": "boolean"}
PARAMS = {
    "partitions": Param(
        [], type="array", items={"type": "string"}, title="Partitions", description="Such as dt=2026-03-01; only these."
    ),
    "interval_start": Param(None, **DATE, title="Interval start", description="Partitions that end in here; UTC."),
    "interval_end": Param(None, **DATE, title="Interval end", description="The first moment after the interval; UTC."),
    "force": Param(False, **FLAG, title="Force", description="Publish these again, or before they are ready."),
    "newest": Param(False, **FLAG, title="Newest version", description="Instead of the version of the event time."),
    "dry_run": Param(False, **FLAG, title="Dry run", description="Log what would be done, and do nothing."),
}


def publish_dag(spec: TableSpec, publish: PublishSpec) -> DAG:
    """Build the DAG of one table."""
    table, by_clock = str(Path(spec.source).absolute()), publish_timetable(publish)
    schedule: Any = [table_asset(spec)]
    if by_clock is not None:
        schedule = AssetOrTimeSchedule(timetable=by_clock, assets=[table_asset(spec)])
    outlets = [partitions_asset(publish.target)]
    soon = {"retries": 3, "retry_delay": timedelta(seconds=30)}
    with DAG(
        dag_id=f"publish.{spec.table}",
        description=f"Partitions of {spec.table} appear as {publish.target} in the metastore",
        doc_md=__doc__,
        schedule=schedule,
        # The past may be published again by a backfill.
        start_date=datetime(2015, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        params=PARAMS,
        tags=["lakehouse", "publish"],
    ) as dag:
        published = PublishPartitionsOperator(
            task_id="publish",
            table=table,
            by_interval="interval" in publish.ready,
            signals="signal" in publish.ready,
            periods=publish,
            outlets=outlets,
            # Backfills do not heed max_active_runs.
            max_active_tis_per_dag=1,
            **soon,
        )
        due = archive_due.override(trigger_rule="none_failed", pool=published.pool, **soon)(table)
        archive = ArchivePartitionsOperator.partial(
            task_id="archive",
            publish_task_id="publish",
            outlets=outlets,
            pool=SPARK_POOL,
            max_active_tis_per_dag=1,
            execution_timeout=timedelta(hours=6),
            **soon,
        ).expand(table=due)
        accepted = signals_accepted.override(trigger_rule="none_failed", pool=published.pool)(published.output)
        published >> due >> archive
        published >> accepted
    return dag


# A task needs its own DAG only.
wanted = get_parsing_context().dag_id
for spec in load_specs(spec_directories(Path(__file__).parent)).good:
    declared = spec.publication()
    if declared is not None and wanted in (None, f"publish.{spec.table}"):
        publish_dag(spec, declared)
