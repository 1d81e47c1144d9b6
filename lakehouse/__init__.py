"""Tables in the Apache Hudi format, written, read and serviced natively on Spark and Arrow.

`Table`, `Catalog`, `load_catalog` and `progress` are imported at first use. Importing this package is therefore cheap,
and Airflow can import it while it parses DAGs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lakehouse.core.table.table import Table
    from lakehouse.platform.catalog.catalog import Catalog, load_catalog

    progress: Callable[..., AbstractContextManager[None]]

__all__ = ["Catalog", "Table", "__version__", "load_catalog", "progress"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Table":
        from lakehouse.core.table.table import Table

        return Table
    if name in ("Catalog", "load_catalog"):
        from lakehouse.platform.catalog import catalog

        return getattr(catalog, name)
    if name == "progress":
        # Packages below `cli` import this module for its version, so no import statement may name `cli`.
        return import_module("lakehouse.cli.progress").progress
    raise AttributeError(f"module 'lakehouse' has no attribute {name!r}")
