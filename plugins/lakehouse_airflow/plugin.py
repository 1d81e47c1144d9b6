"""Airflow plugin: pages, their REST API, and a listener for missing pools and for notes on refused parameters.

An entry point of the package registers the plugin. Every process of Airflow loads this module, so it imports little.

DAGs import the other modules themselves. The plugin refuses to load on an unsupported version of Airflow, or if a
requirement is missing: Airflow then lists the reason in the import errors of plugins. On versions without pages it
loads the other parts, and logs the features that are missing.
"""

from __future__ import annotations

import logging
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lakehouse_airflow.compat import PAGES, AirflowPlugin, hookimpl, missing_features, missing_text
from lakehouse_airflow.compat.versions import airflow_version, version_problem

log = logging.getLogger(__name__)

#: Modules that the DAGs need, each with its distribution.
_NEEDED = {
    "airflow.providers.apache.spark": "apache-airflow-providers-apache-spark",
    "lakehouse.spec": "lakehouse-tables",
    "psutil": "psutil",
}


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
    """Entry of Airflow's list of plugins. Its name contains the absence of pages."""

    name = "lakehouse" if PAGES.is_present else "lakehouse without pages"
    #: Features that the installed Airflow lacks.
    missing = tuple(feature.name for feature in missing_features())
    listeners = [RunListener()]  # noqa: RUF012 -- Airflow reads the list from the class

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Raise ImportError if the plugin cannot work, and log the features that the installed Airflow lacks."""
        del args, kwargs
        problem = version_problem(airflow_version()) or _missing_packages()
        if problem:
            raise ImportError(f"the plugin lakehouse does not work: {problem}")
        lacking = missing_text()
        if lacking:
            log.info("plugin %s: %s", cls.name, lacking)

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the REST API of the pages. Only the API server reads this property, and only it imports FastAPI.

        It reads the property with each list of plugins, which every page of Airflow requests, so the result is cached.
        """
        if not PAGES.is_present:
            return []
        try:
            app = import_module("lakehouse_airflow.api.app")
        except ImportError:
            # Airflow's API server would not start. The other parts of the plugin work.
            log.exception("plugin lakehouse: the pages and the REST API are left out, because they cannot be imported")
            return []
        return [{"app": app.build_app(), "url_prefix": app.PREFIX, "name": "lakehouse"}]

    @property
    def react_apps(self) -> list[dict[str, Any]]:
        """Return the pages: one in the navigation, and a tab of each DAG run. None without their REST API."""
        if not self.fastapi_apps:
            return []
        pages: list[dict[str, Any]] = import_module("lakehouse_airflow.page_list").react_apps()
        return pages


def _missing_packages() -> str:
    """Return the distributions that must be installed, or an empty string."""
    missing = sorted({distribution for module, distribution in _NEEDED.items() if not _is_installed(module)})
    return f"not installed in this environment: {', '.join(missing)}" if missing else ""


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
