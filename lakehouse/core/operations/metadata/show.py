"""Show the metadata table of a table: partitions, file groups, sizes, compaction, and use by readers (MDT-7)."""

from __future__ import annotations

from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.partitions.registry import partition_refusal
from lakehouse.core.metadata.read.table import MetadataTable, open_for_reading
from lakehouse.core.metadata.read.unusable import MetadataUnusableError, Unusable
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.index_definition import listed_in
from lakehouse.core.planning.indexing import in_build_order
from lakehouse.errors import LakehouseError
from lakehouse.model.indexing import ARGUMENTS, FORMAT_ARGUMENT, IDENTITY
from lakehouse.model.instant import Action, State
from lakehouse.model.metadata_report import MetadataPartition, MetadataSummary


def show_metadata(table: LoadedTable) -> MetadataSummary:
    """Return the content of the metadata table; lists the folders of its partitions and reads no data."""
    opened = open_for_reading(table.metadata, table.timeline)
    listed = listed_in(table)
    pending = tuple(plan.requested for plan in table.timeline.where(action=Action.INDEXING, pending=True))
    if not listed.usable and not listed.building:
        assert isinstance(opened, Unusable), "no partition is listed"
        return MetadataSummary(usable=False, reason=opened.reason, pending=pending)
    reason = opened.reason if isinstance(opened, Unusable) else ""
    try:
        definitions = read_definitions(table.env.storage)
        timeline = table.metadata.timeline_store.load()
    except LakehouseError as error:
        return MetadataSummary(usable=False, reason=reason or error.message, pending=pending)
    compactions = timeline.where(action=Action.COMMIT, state=State.COMPLETED).instants
    compacted = compactions[-1].requested if compactions else None
    deltas = timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    metadata = opened if isinstance(opened, MetadataTable) else None
    partitions = [
        _partition(table, metadata, name, definitions.get(name), is_usable=name in listed.usable, fault=reason)
        for name in in_build_order((*listed.usable, *listed.building))
    ]
    return MetadataSummary(
        usable=metadata is not None,
        reason=reason,
        compacted=compacted,
        delta_commits=sum(compacted is None or delta.completion > compacted for delta in deltas),
        pending=pending,
        partitions=tuple(partitions),
    )


# parameters: the partition, and the parts of the table that describe it
def _partition(
    table: LoadedTable,
    metadata: MetadataTable | None,
    name: str,
    definition: Definition | None,
    *,
    is_usable: bool,
    fault: str,
) -> MetadataPartition:
    state = "usable" if is_usable else "building"
    reason = fault if is_usable else "it is being built; readers use it when the build is complete"
    refusal = partition_refusal(name, table.config, definition)
    shown = MetadataPartition(
        partition=name, state=state, indexes=_indexes(definition), reason=reason or (refusal or "")
    )
    files, _ = table.metadata.inner.storage.list_dir(name)
    if metadata is None:
        return MetadataPartition(
            partition=name,
            state=state,
            bytes=sum(file.size_bytes for file in files),
            indexes=shown.indexes,
            reason=shown.reason,
        )
    try:
        slices = metadata.slices(name)
    except MetadataUnusableError as error:
        return MetadataPartition(partition=name, state=state, indexes=shown.indexes, reason=error.message)
    current = {file.path.rpartition("/")[2] for piece in slices for file in (piece.base, *piece.logs) if file}
    return MetadataPartition(
        partition=name,
        state=state,
        groups=len(slices),
        base_files=sum(piece.base is not None for piece in slices),
        log_files=sum(len(piece.logs) for piece in slices),
        bytes=sum(file.size_bytes for file in files if file.name in current),
        indexes=shown.indexes,
        reason=shown.reason,
    )


def _indexes(definition: Definition | None) -> str:
    if definition is None:
        return ""
    return expression_of(definition) or ", ".join(definition.source_fields)


def expression_of(definition: Definition) -> str:
    """Return the function of an index with its arguments, such as `substring(city, 1, 3)`; empty for a plain column."""
    if not definition.function or definition.function in (IDENTITY, definition.index_type):
        return ""
    names = ARGUMENTS.get(definition.function, FORMAT_ARGUMENT)
    arguments = [definition.options[name] for name in names if name in definition.options]
    return f"{definition.function}({', '.join([*definition.source_fields, *arguments])})"
