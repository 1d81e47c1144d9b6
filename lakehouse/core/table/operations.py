"""The operations of a table that a read does not need: each is imported when it is used first.

Opening a table and reading rows needs about half of the modules. The others cost more time than a small read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse.core.operations.create.create import create_table
    from lakehouse.core.operations.placement.protocol import WriteRequest
    from lakehouse.core.operations.read.describe import describe
    from lakehouse.core.operations.read.health import table_health
    from lakehouse.core.operations.services.ttl import partition_expiry
    from lakehouse.core.operations.undo.restore import restore
    from lakehouse.core.operations.undo.rollback import roll_back_expired_writes, rollback
    from lakehouse.core.operations.undo.savepoint import create_savepoint, delete_savepoint
    from lakehouse.core.operations.validate.validate import validate
    from lakehouse.core.operations.version.change_version import change_version
    from lakehouse.core.operations.version.version_plan import VersionRequest
    from lakehouse.core.operations.write.write import write
    from lakehouse.core.table.bootstrap import BootstrapRequest, bootstrap
    from lakehouse.core.table.input_rows import InputRules, has_rows, input_batch
    from lakehouse.core.table.inspection import TableInspection
    from lakehouse.core.table.metadata import TableMetadata
    from lakehouse.core.table.services import TableServices

__all__ = [
    "BootstrapRequest",
    "InputRules",
    "TableInspection",
    "TableMetadata",
    "TableServices",
    "VersionRequest",
    "WriteRequest",
    "bootstrap",
    "change_version",
    "create_savepoint",
    "create_table",
    "delete_savepoint",
    "describe",
    "has_rows",
    "input_batch",
    "partition_expiry",
    "restore",
    "roll_back_expired_writes",
    "rollback",
    "table_health",
    "validate",
    "write",
]

_MODULES = {
    "lakehouse.core.operations.create.create": ("create_table",),
    "lakehouse.core.operations.placement.protocol": ("WriteRequest",),
    "lakehouse.core.operations.read.describe": ("describe",),
    "lakehouse.core.operations.read.health": ("table_health",),
    "lakehouse.core.operations.services.ttl": ("partition_expiry",),
    "lakehouse.core.operations.undo.restore": ("restore",),
    "lakehouse.core.operations.undo.rollback": ("roll_back_expired_writes", "rollback"),
    "lakehouse.core.operations.undo.savepoint": ("create_savepoint", "delete_savepoint"),
    "lakehouse.core.operations.validate.validate": ("validate",),
    "lakehouse.core.operations.version.change_version": ("change_version",),
    "lakehouse.core.operations.version.version_plan": ("VersionRequest",),
    "lakehouse.core.operations.write.write": ("write",),
    "lakehouse.core.table.alter": ("AlterBuilder",),
    "lakehouse.core.table.bootstrap": ("BootstrapRequest", "bootstrap"),
    "lakehouse.core.table.input_rows": ("InputRules", "has_rows", "input_batch"),
    "lakehouse.core.table.inspection": ("TableInspection",),
    "lakehouse.core.table.metadata": ("TableMetadata",),
    "lakehouse.core.table.services": ("TableServices",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import an operation when it is used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
