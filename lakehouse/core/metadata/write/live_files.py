"""Computes the files in the newest slices of some partitions after an action that is not completed yet (TL-6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.state.columnar_view import latest_columns, unplaced_instants
from lakehouse.core.state.data_files import data_files, members
from lakehouse.core.state.file_system_view import (
    DataFile,
    Replaced,
    VisibleTimeline,
    latest_slices,
    unplaced,
    visible_timeline,
)
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Instant, State, Timeline

#: A completion time that sorts after all others.
_LAST = "9" * 17
#: Maximum number of files for which the object-based view is used.
_FEW_FILES = 64


# parameters: both tables, the action with its change, and the partitions
def live_files(
    metadata: MetadataTable,
    data: Timeline,
    action: Instant,
    change: MetadataChange,
    replaced: Callable[[], Iterable[Replaced]],
    partitions: Sequence[str],
    *,
    layout: TableLayout,
) -> pa.Table | None:
    """Return the files with the columns `partition` and `name`, or None if they cannot be determined.

    This happens if the action was rolled back in between, or if the result depends on an archived completion time.

    Args:
        metadata: The metadata table before the action.
        data: The data timeline before the action completes.
        action: The inflight action.
        change: The changes of the action.
        replaced: Returns the file groups that completed replacecommits replaced.
        partitions: Partition paths.
        layout: The layout of the data timeline.
    """
    current = data.current(action)
    if current is None or current.state is not State.INFLIGHT:
        return None
    stored = metadata.listing(partitions)
    after = data.transition(action, State.COMPLETED, _LAST)
    completed = after.current(action)
    assert completed is not None
    groups = (change.replaced.column(name).to_pylist() for name in ("partition", "file_id"))
    own = [
        Replaced(partition=partition, file_id=file_id, instant=completed)
        for partition, file_id in zip(*groups, strict=True)
    ]
    visible = visible_timeline(after, [*replaced(), *own])
    if stored.num_rows + change.written.num_rows <= _FEW_FILES:
        return _few_live(stored, change, visible, frozenset(partitions), layout)
    added = change.written.filter(members(change.written.column("partition"), partitions))
    files = data_files(pa.concat_tables([stored, added.cast(stored.schema)]))
    files = files.filter(pc.equal(files.column("suffix").fill_null(""), ""))
    if unplaced_instants(files, visible, layout=layout):
        return None
    live = latest_columns(files, visible, layout=layout).files
    return pa.table({name: live.column(name).cast(pa.string()) for name in ("partition", "name")})


# parameters: the files before the action, the files of the action, and the view of the table
def _few_live(
    stored: pa.Table, change: MetadataChange, visible: VisibleTimeline, partitions: frozenset[str], layout: TableLayout
) -> pa.Table | None:
    """Return the live files of partitions with few files."""
    files: list[DataFile] = []
    for table in (stored, change.written):
        for partition, name, size in zip(*(column.to_pylist() for column in table.columns), strict=True):
            file = parse_base_file(name, partition, size) or parse_log_file(name, partition, size)
            if file is not None and partition in partitions:
                files.append(file)
    if unplaced(files, visible, layout=layout):
        return None
    live = [file for slice_ in latest_slices(files, visible, layout=layout) for file in _files_of(slice_)]
    columns = [[file.partition for file in live], [file.name for file in live]]
    return pa.table([pa.array(column, pa.string()) for column in columns], names=["partition", "name"])


def _files_of(slice_: FileSlice) -> tuple[DataFile, ...]:
    return slice_.logs if slice_.base is None else (slice_.base, *slice_.logs)
