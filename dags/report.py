"""An example of a DAG of one's own: a report of yesterday's orders, as soon as the day is published.

The first waits for its day without holding a slot: the sensor defers. The second has one run per partition, started by
its event, in whatever order they appear. Copy them and change the names.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, PartitionedAssetTimetable, task

from lakehouse_airflow.assets import partitions_asset
from lakehouse_airflow.publish_sensor import PartitionReadySensor

# A table of the catalog whose spec has services.publish, or the path of such a spec; and what it is published as.
TABLE, PUBLISHED = "sales.orders", "shop.orders"


@task
def report(seen: dict[str, Any]) -> str:
    """Say what would be read: one partition, at the version that all its readers see."""
    return f"{PUBLISHED}, {seen['partition']}, version {seen['instant']}"


@task
def report_of_key(**context: Any) -> str:
    """Say the same of the partition whose event started the run; by hand there is none."""
    return str(context["dag_run"].partition_key or "no partition was named")


with DAG(
    dag_id="report.daily",
    description="Wait until yesterday is published, then read it",
    doc_md=__doc__,
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["lakehouse", "example"],
) as daily:
    there = PartitionReadySensor(
        task_id="there", table=TABLE, partition="dt={{ ds }}", deferrable=True, timeout=timedelta(hours=12)
    )
    report(there.output)

with DAG(
    dag_id="report.partitions",
    description="One run for each partition that appears",
    doc_md=__doc__,
    schedule=PartitionedAssetTimetable(assets=partitions_asset(PUBLISHED)),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["lakehouse", "example"],
) as by_partition:
    report_of_key()
