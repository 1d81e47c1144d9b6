"""Airflow plugin: its listener fails tasks whose pool is missing. An entry point of the package registers the plugin.

DAGs import the other modules themselves.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin


class RunListener:
    """Listener of DAG runs. Airflow calls it in the scheduler."""

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Check the pools of a run that starts."""
        del msg
        # Every task process loads the plugin, and only the scheduler needs the models of Airflow's database.
        checks = import_module("lakehouse_airflow.missing_pools")
        checks.fail_tasks_without_pool(dag_run)
        checks.give_pools(dag_run)


class LakehousePlugin(AirflowPlugin):
    """Entry of Airflow's list of plugins."""

    name = "lakehouse"
    listeners = [RunListener()]  # noqa: RUF012 -- Airflow reads the list from the class
