"""Airflow operators, sensors, assets and DAG builders of lakehouse; light imports, because DAG parsing needs them.

`lakehouse_dags` builds the DAGs of a deployment in a DAG file of its own. Operators are in the modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse_airflow.dags import lakehouse_dag_errors, lakehouse_dags

__all__ = ["lakehouse_dags", "lakehouse_dag_errors"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: each process of Airflow loads the plugin, few of them parse DAGs."""
    if name in __all__:
        return getattr(import_module("lakehouse_airflow.dags"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
