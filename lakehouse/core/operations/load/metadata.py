"""Use the metadata table of a loaded table, or do without it (MDT-7)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from lakehouse.core.metadata.read.table import MetadataTable, open_for_reading
from lakehouse.core.metadata.read.unusable import MetadataUnusableError, Unusable
from lakehouse.core.operations.load.table import LoadedTable

logger = logging.getLogger(__name__)

T = TypeVar("T")


def metadata_of(table: LoadedTable) -> MetadataTable | None:
    """Return the metadata table of a loaded table; None if it has none that may be used.

    It is opened once for each load of the table. A damaged or outdated metadata table is logged as a warning.
    """
    cache = table.metadata.cache
    if cache.opened is None or cache.opened[0] is not table:
        found = open_for_reading(table.metadata, table.timeline)
        if isinstance(found, Unusable) and found.is_fault:
            _warn(found.reason)
        cache.opened = (table, found)
    found = cache.opened[1]
    return found if isinstance(found, MetadataTable) else None


def from_metadata(table: LoadedTable, partition: str, read: Callable[[MetadataTable], T]) -> T | None:
    """Return what `read` returns for the metadata table; None if the caller has to do without it.

    This is the one place where a damaged metadata table is replaced by the files of the data table. The warning names
    the damaged file. The metadata table is not used again until the table is reloaded.

    Args:
        table: The loaded table.
        partition: The index partition that `read` uses.
        read: Reads the metadata table.
    """
    metadata = metadata_of(table)
    if metadata is None or partition not in metadata.usable:
        return None
    try:
        return read(metadata)
    except MetadataUnusableError as error:
        _warn(error.message)
        table.metadata.cache.opened = (table, Unusable(error.message, is_fault=True))
        return None


def _warn(reason: str) -> None:
    logger.warning("The metadata table is not used; files are listed and footers are read instead: %s", reason)
