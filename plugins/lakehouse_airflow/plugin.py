"""Airflow plugin that lists lakehouse among the installed plugins. DAGs import the other modules themselves."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class LakehousePlugin(AirflowPlugin):
    """Entry of Airflow's list of plugins."""

    name = "lakehouse"
