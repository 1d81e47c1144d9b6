"""Airflow operators, sensors, assets and DAG builders of lakehouse.

DAG parsing imports this package, so it imports little.

A user's DAG file calls `lakehouse_dags` to build the DAGs of a deployment. The names in `__all__` are the public API;
all other names may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse_airflow.alerts import deadline_missed, task_failed
    from lakehouse_airflow.assets import (
        drop_events,
        named_table_asset,
        partitions_asset,
        published_asset,
        source_assets,
        table_asset,
    )
    from lakehouse_airflow.dags import lakehouse_dag_errors, lakehouse_dags
    from lakehouse_airflow.operators import LakehouseOperator
    from lakehouse_airflow.publish import ArchivePartitionsOperator, PublishPartitionsOperator
    from lakehouse_airflow.publish_sensor import PartitionReadySensor
    from lakehouse_airflow.services import ServiceOperator, service_dag
    from lakehouse_airflow.stream import StreamOperator

__all__ = [
    "ArchivePartitionsOperator",
    "LakehouseOperator",
    "PartitionReadySensor",
    "PublishPartitionsOperator",
    "ServiceOperator",
    "StreamOperator",
    "deadline_missed",
    "drop_events",
    "lakehouse_dag_errors",
    "lakehouse_dags",
    "named_table_asset",
    "partitions_asset",
    "published_asset",
    "service_dag",
    "source_assets",
    "table_asset",
    "task_failed",
]

#: Public names, each with its module.
_MODULES = {
    "alerts": ("deadline_missed", "task_failed"),
    "assets": (
        "drop_events",
        "named_table_asset",
        "partitions_asset",
        "published_asset",
        "source_assets",
        "table_asset",
    ),
    "dags": ("lakehouse_dag_errors", "lakehouse_dags"),
    "operators": ("LakehouseOperator",),
    "publish": ("ArchivePartitionsOperator", "PublishPartitionsOperator"),
    "publish_sensor": ("PartitionReadySensor",),
    "services": ("ServiceOperator", "service_dag"),
    "stream": ("StreamOperator",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because each Airflow process loads the plugin, but only a few parse DAGs."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lakehouse_airflow.{_MODULE_OF[name]}"), name)
