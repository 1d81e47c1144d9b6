"""The Avro schema in which the files of a metadata table are written (MDT-2).

New metadata tables have the schema of the first release of Hudi with the table version. A table of version 8 may have
been written by Hudi 1.0 or by a newer release. Its new files get the schema of its newest base file of `files`, so that
all files of a slice have one schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.format.metadata.schema import CURRENT, schema_of_form
from lakehouse.core.metadata.read.table import FILES, MetadataTable
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.metadata.read.validity import validity
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.model.instant import Timeline


def use_stored_schema(store: MetadataStore, names: Sequence[str], timeline: Timeline, data: Timeline) -> None:
    """Let new files have the record schema of the stored ones.

    Tables of version 9 have one schema. For version 8 the partition `files` is read, which readers keep.

    Args:
        store: The metadata table; its `records` is set.
        names: The index partitions that the properties list; without `files` there is no metadata table.
        timeline: The timeline of the metadata table.
        data: The timeline of the data table.
    """
    store.records = store.config.layout.metadata_schema
    if store.records is CURRENT or FILES not in names:
        return
    table = MetadataTable(store, names, validity(timeline, data))
    try:
        layers = [layer for slice_ in table.slices(FILES) for layer in table.layers(FILES, slice_.file_id)]
    except MetadataUnusableError:
        # The action that needs the files reports the damage.
        return
    schemas = [layer.hfile.schema for layer in layers if layer.hfile is not None and layer.hfile.schema]
    store.records = next((known for known in map(schema_of_form, schemas) if known is not None), store.records)
