"""Provider description for Airflow, with the connection type of this package.

Airflow reads it through an entry point.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the description in the format of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "lakehouse-tables",
        "name": "Lakehouse",
        "description": "Ingestion, table services and publication of tables in the Apache Hudi format.",
        "cli": ["lakehouse_airflow.setup_command.commands"],
        "connection-types": [
            {
                "connection-type": "lakehouse_catalog",
                "hook-class-name": "lakehouse_airflow.catalog_hook.CatalogHook",
                "hook-name": "Lakehouse catalog",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra"],
                    "relabeling": {"schema": "Database"},
                    "placeholders": {"host": "catalog.example.com", "port": "5432", "schema": "lakehouse"},
                },
                "conn-fields": {
                    "url": {
                        "label": "URL",
                        "description": "SQLAlchemy URL, such as postgresql+psycopg://user:password@host/lakehouse. "
                        "If it is set, the fields above are not used.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    }
                },
            }
        ],
    }
