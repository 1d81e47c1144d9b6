"""The DAG `lakehouse.doctor`. `doctor_dag` takes arguments such as another `schedule`."""

from __future__ import annotations

from lakehouse_airflow.doctor_dag import doctor_dag

dag = doctor_dag()
