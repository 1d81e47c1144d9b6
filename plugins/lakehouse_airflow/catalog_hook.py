"""Airflow hook for a connection to a catalog, the database of tables, specs, policies, requests and runs."""

from __future__ import annotations

from lakehouse_airflow.compat import BaseHook
from lakehouse_airflow.job_environment import CATALOG_CONNECTION, catalog_url


class CatalogHook(BaseHook):
    """Hook that returns the URL of the catalog from an Airflow connection.

    Jobs get the URL of the connection `lakehouse_catalog`. Airflow's environment needs no database driver for it.

    Args:
        catalog_conn_id: Id of the connection.
    """

    conn_name_attr = "catalog_conn_id"
    default_conn_name = CATALOG_CONNECTION
    conn_type = "lakehouse_catalog"
    hook_name = "Lakehouse catalog"

    def __init__(self, catalog_conn_id: str = CATALOG_CONNECTION) -> None:
        super().__init__()
        self.catalog_conn_id = catalog_conn_id

    def get_conn(self) -> str:
        """Return the SQLAlchemy URL, which usually contains a password."""
        return catalog_url(self.get_connection(self.catalog_conn_id))
