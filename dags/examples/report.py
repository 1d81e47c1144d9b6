"""Example of custom DAGs: a report of yesterday's orders, as soon as the day is published.

The first DAG waits for its day without a slot, because the sensor defers. The second one has one run per published
partition, started by its asset event, in the order of publication; it needs Airflow 3.3. Copy
this file and change the names.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lakehouse.spec.contracts.publication import PartitionEvent
from lakehouse_airflow.assets import partitions_asset
from lakehouse_airflow.compat import DAG, PARTITION_KEYS, CronDataIntervalTimetable, offers, task
from lakehouse_airflow.publish_sensor import PartitionReadySensor

# A table of the catalog whose spec has services.publish, or the path of such a spec; and its published name.
TABLE, PUBLISHED = "sales.orders", "shop.orders"


@task
def report(seen: dict[str, Any]) -> str:
    """Return a text with the partition and the version that its readers see; `seen` is a PartitionEvent."""
    event = PartitionEvent.from_mapping(seen)
    return f"{PUBLISHED}, {event.partition}, version {event.instant}"


@task
def report_of_key(**context: Any) -> str:
    """Return the partition whose event started the run; a manual run has none."""
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

if offers(PARTITION_KEYS, "report.partitions"):
    from lakehouse_airflow.compat import PartitionedAssetTimetable

    with DAG(
        dag_id="report.partitions",
        description="One run for each published partition",
        doc_md=__doc__,
        schedule=PartitionedAssetTimetable(assets=partitions_asset(PUBLISHED)),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        tags=["lakehouse", "example"],
    ) as by_partition:
        report_of_key()
