"""The DAGs `services.compaction` and `services.logcompaction`."""

from __future__ import annotations

from lakehouse_airflow.dags_services import usual_service_dag

dag = usual_service_dag("compaction")
log_dag = usual_service_dag("logcompaction")
