"""Open the metadata table of a data table for reading, or say why it must not be used (MDT-7)."""

from __future__ import annotations

from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.metadata.read.table import FILES, MetadataTable
from lakehouse.core.metadata.read.unusable import Unusable
from lakehouse.core.metadata.read.validity import missing_instants, validity
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Timeline


def open_for_reading(store: MetadataStore, data: Timeline) -> MetadataTable | Unusable:
    """Return the metadata table for readers of one version of the data table; one listing, of the metadata timeline.

    Args:
        store: The metadata table on storage, with the properties of the data table.
        data: The timeline of the data table. It must have been loaded before this call.
    """
    usable, building = listed_partitions(store.config.raw)
    root = store.inner.storage.root
    if FILES not in usable:
        if FILES in building:
            return Unusable(f"{root} is being built", is_fault=False)
        return Unusable(f"the properties of {store.env.storage.root} list no metadata table", is_fault=False)
    try:
        metadata = store.timeline_store.load()
    except CorruptTableError as error:
        return Unusable(f"{root}: {error.message}", is_fault=True)
    if not any(instant.is_completed for instant in metadata):
        reason = f"{root} does not exist, but the table's properties list it"
        return Unusable(reason, is_fault=True, is_absent=True)
    missing = missing_instants(metadata, data)
    if missing:
        return Unusable(
            f"{root} is behind: it has no delta commit for the {missing[0].action} {missing[0].requested}"
            f" ({len(missing)} in all). Run `lakehouse metadata rebuild`",
            is_fault=True,
        )
    return MetadataTable(store, usable, validity(metadata, data))
