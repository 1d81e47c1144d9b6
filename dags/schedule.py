"""The DAG `services.schedule`. `schedule_dag` takes arguments such as another `schedule` or budgets."""

from __future__ import annotations

from lakehouse_airflow.schedule import schedule_dag

dag = schedule_dag()
