"""The DAG `services.validation`: a sample of the tables each night. `usual_service_dag` takes another `schedule`."""

from __future__ import annotations

from lakehouse_airflow.dags_services import usual_service_dag

#: A table that was validated is not due for a week, so the next night takes other tables.
dag = usual_service_dag("validation", arguments=("--max-runs", "20"))
