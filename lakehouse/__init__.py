"""Tables in the Apache Hudi format, written, read and serviced natively on Spark and Arrow.

The names of `__all__` are the public API: [Compatibility and releases](docs/compatibility.md) says what that promises.
They are imported at first use. Importing this package is therefore cheap, and Airflow can import it while it parses
DAGs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lakehouse.core.operations.commit.precondition import Precondition
    from lakehouse.core.operations.commit.results import Committed, NothingToDo, Totals
    from lakehouse.core.planning.event_time import EventTimeVersion, Watermark
    from lakehouse.core.table.arguments import WriteCall
    from lakehouse.core.table.scan import TableScan
    from lakehouse.core.table.services import TableService, TableServices
    from lakehouse.core.table.table import Table
    from lakehouse.errors import (
        CleanedHistoryError,
        CommitStateUnknownError,
        ConflictError,
        CorruptTableError,
        LakehouseError,
        RetryableError,
        TableBusyError,
        UnsupportedError,
        UserError,
    )
    from lakehouse.model.deprecation import LakehouseDeprecationWarning
    from lakehouse.model.instant import Instant, Timeline
    from lakehouse.model.keys import TimestampFormat
    from lakehouse.model.nothing_to_do import NothingToDoReason
    from lakehouse.platform.catalog.catalog import Catalog, load_catalog
    from lakehouse.platform.export.copies import copy_table, export_to_parquet

    progress: Callable[..., AbstractContextManager[None]]

__all__ = [
    "Catalog",
    "CleanedHistoryError",
    "CommitStateUnknownError",
    "Committed",
    "ConflictError",
    "CorruptTableError",
    "EventTimeVersion",
    "Instant",
    "LakehouseDeprecationWarning",
    "LakehouseError",
    "NothingToDo",
    "NothingToDoReason",
    "Precondition",
    "RetryableError",
    "Table",
    "TableBusyError",
    "TableScan",
    "TableService",
    "TableServices",
    "Timeline",
    "TimestampFormat",
    "Totals",
    "UnsupportedError",
    "UserError",
    "Watermark",
    "WriteCall",
    "__version__",
    "copy_table",
    "export_to_parquet",
    "load_catalog",
    "progress",
]
__version__ = "0.1.0"

#: The modules of the public names. Packages below `cli` import this module for its version, so no import statement may
#: name `cli`.
_MODULES = {
    "lakehouse.core.operations.commit.precondition": ("Precondition",),
    "lakehouse.core.operations.commit.results": ("Committed", "NothingToDo", "Totals"),
    "lakehouse.core.planning.event_time": ("EventTimeVersion", "Watermark"),
    "lakehouse.core.table.scan": ("TableScan",),
    "lakehouse.core.table.services": ("TableService", "TableServices"),
    "lakehouse.core.table.table": ("Table",),
    "lakehouse.core.table.arguments": ("WriteCall",),
    "lakehouse.errors": (
        "CleanedHistoryError",
        "CommitStateUnknownError",
        "ConflictError",
        "CorruptTableError",
        "LakehouseError",
        "RetryableError",
        "TableBusyError",
        "UnsupportedError",
        "UserError",
    ),
    "lakehouse.model.deprecation": ("LakehouseDeprecationWarning",),
    "lakehouse.model.instant": ("Instant", "Timeline"),
    "lakehouse.model.keys": ("TimestampFormat",),
    "lakehouse.model.nothing_to_do": ("NothingToDoReason",),
    "lakehouse.platform.catalog.catalog": ("Catalog", "load_catalog"),
    "lakehouse.platform.export.copies": ("copy_table", "export_to_parquet"),
    "lakehouse.cli.progress": ("progress",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lakehouse' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
