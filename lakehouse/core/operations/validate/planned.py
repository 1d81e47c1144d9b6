"""Validates plans and reports on the timeline: each can be read, and the files that it lists exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.format.timeline.indexing import decode_index_metadata, decode_index_plan
from lakehouse.core.format.timeline.restore import decode_restore_metadata, decode_restore_plan, decode_savepoint
from lakehouse.core.format.timeline.rollback import decode_rollback_metadata
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.validate import check_named
from lakehouse.errors import CorruptTableError, LakehouseError
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.restore import SavepointMetadata
from lakehouse.model.validation import Finding

_Decoder = Callable[[bytes], Any]


def check_plans(table: LoadedTable, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Yield findings for unreadable plans, savepoints and reports, and for missing files that they list."""
    for instant, state, decode in _files(table):
        data = table.store.read(instant, state)
        if data is None:
            # The requested file of the action is missing, which another check reports, or the action was completed in
            # between.
            continue
        try:
            value = decode(data)
        except (LakehouseError, ValueError, KeyError, TypeError, IndexError) as error:
            what = "what it did" if state is State.COMPLETED else "its plan"
            problem = f"the {instant.action} is {instant.state.name.lower()}, and {what} cannot be read: {error}"
            yield Finding(invariant="timeline.readable", problem=problem, instant=instant.requested)
            continue
        if isinstance(value, SavepointMetadata):
            yield from check_named("savepoint.files", instant, _savepointed(value), sizes, "savepoint")
        elif isinstance(value, ClusteringPlan | CompactionPlan):
            yield from check_named("plan.files", instant, _planned(value), sizes, f"pending {instant.action}")


def _files(table: LoadedTable) -> Iterator[tuple[Instant, State, _Decoder]]:
    """Yield the instants with plans or reports, the state whose file to read, and its decoder; commits are excluded."""
    for instant in table.timeline:
        decode = _decoder(table, instant)
        if decode is not None:
            yield instant, State.COMPLETED if instant.is_completed else State.REQUESTED, decode
        if instant.action is Action.CLEAN and instant.is_completed and table.config.layout.has_completion_times:
            # Time travel uses the plans of completed cleans too.
            yield instant, State.REQUESTED, lambda data: decode_clean_plan(data, base_path=table.env.storage.root)


def _decoder(table: LoadedTable, instant: Instant) -> _Decoder | None:
    """Return the decoder for the instant's file; None for a write, which is read as a commit."""
    base, layout = table.env.storage.root, table.config.layout
    if instant.is_completed:
        return {
            Action.CLEAN: decode_clean_metadata,
            Action.SAVEPOINT: decode_savepoint,
            Action.ROLLBACK: lambda data: decode_rollback_metadata(data, base_path=base),
            Action.RESTORE: lambda data: decode_restore_metadata(data, base_path=base),
            Action.INDEXING: decode_index_metadata,
        }.get(instant.action)
    return {
        Action.COMPACTION: _required(decode_compaction_plan),
        Action.LOGCOMPACTION: _required(decode_compaction_plan),
        Action.CLUSTERING: _required(decode_clustering_plan),
        # In version 6 both writes and clusterings have this action; writes have no plan.
        Action.REPLACECOMMIT: lambda data: decode_clustering_plan(data) if data else None,
        Action.CLEAN: lambda data: decode_clean_plan(data, base_path=base),
        Action.ROLLBACK: lambda data: layout.decode_rollback_plan(data, base_path=base),
        Action.RESTORE: decode_restore_plan,
        Action.INDEXING: decode_index_plan,
    }.get(instant.action)


def _required(decode: _Decoder) -> _Decoder:
    def read(data: bytes) -> Any:
        if not data:
            raise CorruptTableError("the file is empty")
        return decode(data)

    return read


def _savepointed(savepoint: SavepointMetadata) -> Iterable[str]:
    return _paths((partition, name) for partition, names in savepoint.files.items() for name in names)


def _planned(plan: ClusteringPlan | CompactionPlan) -> Iterable[str]:
    pieces = plan.slices if isinstance(plan, ClusteringPlan) else plan.operations
    return _paths(
        (piece.partition, name)
        for piece in pieces
        for name in (*((piece.data_file,) if piece.data_file else ()), *piece.log_files)
    )


def _paths(names: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (f"{partition}/{name}" if partition else name for partition, name in names)
