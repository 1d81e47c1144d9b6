"""Airflow plugin: pages, their REST API, and a listener for missing pools and for notes on refused parameters.

An entry point of the package registers the plugin. Every process of Airflow loads this module, so it imports little.

DAGs import the other modules themselves.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

from lakehouse_airflow.compat import AirflowPlugin, hookimpl


class RunListener:
    """Listener for DAG runs. Airflow calls it in the scheduler."""

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Check the pools of a run that starts."""
        del msg
        # Imported here, because every task process loads the plugin, but only the scheduler needs Airflow's database
        # models.
        checks = import_module("lakehouse_airflow.missing_pools")
        checks.fail_tasks_without_pool(dag_run)
        import_module("lakehouse_airflow.run_facts").give_facts(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        """Write the reason why parameters were refused into the note of the run."""
        del msg
        import_module("lakehouse_airflow.run_notes").note_refusals(dag_run)


class LakehousePlugin(AirflowPlugin):
    """Entry of Airflow's list of plugins."""

    name = "lakehouse"
    listeners = [RunListener()]  # noqa: RUF012 -- Airflow reads the list from the class

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the REST API of the pages. Only the API server reads this property, and only it imports FastAPI.

        It reads the property with each list of plugins, which every page of Airflow requests, so the result is cached.
        """
        app = import_module("lakehouse_airflow.api.app")
        return [{"app": app.build_app(), "url_prefix": app.PREFIX, "name": "lakehouse"}]

    @property
    def react_apps(self) -> list[dict[str, Any]]:
        """Return the pages: one in the navigation, and a tab of each DAG run."""
        pages: list[dict[str, Any]] = import_module("lakehouse_airflow.page_list").react_apps()
        return pages
