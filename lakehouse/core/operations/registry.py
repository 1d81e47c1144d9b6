"""The implementation of each table service that needs only the table, by the name of its ServiceSpec.

`lakehouse.platform.services.registry` has these and those that need the platform, such as a metastore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.core.operations.metadata import validation
from lakehouse.core.operations.services import (
    archive,
    clean,
    clustering,
    compaction,
    index,
    log_compaction,
    orphan_removal,
)
from lakehouse.core.operations.services.service import Service
from lakehouse.core.operations.services.ttl import PartitionTtl
from lakehouse.core.operations.write.write import write

#: One module per service.
IMPLEMENTATIONS: Mapping[str, Service[Any, Any, Any]] = {
    "compaction": compaction,
    "logcompaction": log_compaction,
    "clustering": clustering,
    "index": index,
    "ttl": PartitionTtl(write),
    "clean": clean,
    "archive": archive,
    "orphans": orphan_removal,
    "validation": validation,
}
