"""The DAG `services.export`. `usual_service_dag` takes arguments such as another `schedule`."""

from __future__ import annotations

from lakehouse_airflow.dags_services import usual_service_dag

dag = usual_service_dag("export")
