"""The entry through which Airflow lists lakehouse among its plugins; everything else is imported by DAGs."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class LakehousePlugin(AirflowPlugin):
    """Lakehouse in Airflow's list of plugins."""

    name = "lakehouse"
