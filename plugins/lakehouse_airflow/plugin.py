"""Airflow plugin that lists lakehouse among the installed plugins. An entry point of the package registers it."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class LakehousePlugin(AirflowPlugin):
    """Entry of Airflow's list of plugins."""

    name = "lakehouse"
