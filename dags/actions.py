"""The DAG `lakehouse.actions`: it does the actions that users request on the pages."""

from __future__ import annotations

from lakehouse_airflow.dags_actions import actions_dag

dag = actions_dag()
