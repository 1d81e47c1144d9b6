"""Example of a custom DAG: every night it clusters the trips of yesterday, then it cleans the table.

Operators and task functions of `lakehouse_airflow` are ordinary Airflow tasks with dependencies, callbacks, deadlines
and pools. Copy this file and change the names.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakehouse_airflow.alerts import deadline_missed, task_failed
from lakehouse_airflow.compat import DAG, CronDataIntervalTimetable, deadline_after
from lakehouse_airflow.services import ServiceOperator

TABLE = "default.ride_trips"


with DAG(
    dag_id="nightly.ride_trips",
    description="Cluster yesterday's trips by zone, then clean",
    doc_md=__doc__,
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1), "on_failure_callback": task_failed},
    tags=["lakehouse", "example"],
    # Airflow 3.1 and newer has deadlines. With only one version, pass `deadline=DeadlineAlert(...)`.
    **deadline_after(timedelta(hours=4), deadline_missed, {"what": TABLE}),
) as dag:
    clustered = ServiceOperator(
        task_id="lay_out",
        service="clustering",
        table=TABLE,
        by_interval=True,
        force=True,
        options={
            "hoodie.clustering.plan.strategy.sort.columns": "zone,pickup_at",
            "hoodie.layout.optimize.strategy": "z-order",
        },
    )
    cleaned = ServiceOperator(task_id="clean", service="clean", table=TABLE)
    clustered >> cleaned
