"""The files of the newest slices of some partitions after an action that is not completed yet (TL-6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.state.columnar_view import latest_columns, unplaced_instants
from lakehouse.core.state.data_files import data_files, members
from lakehouse.core.state.file_system_view import Replaced, visible_timeline
from lakehouse.model.instant import Instant, State, Timeline

#: A completion time after all others.
_LAST = "9" * 17


# parameters: both tables, the action with its change, and the partitions
def live_files(
    metadata: MetadataTable,
    data: Timeline,
    action: Instant,
    change: MetadataChange,
    replaced: Callable[[], Iterable[Replaced]],
    partitions: Sequence[str],
    *,
    layout: int,
) -> pa.Table | None:
    """Return the files with the columns `partition` and `name`; None if they cannot be determined.

    That is the case if the action was rolled back meanwhile, or if the completion time of an archived instant decides.

    Args:
        metadata: The metadata table before the action.
        data: The data timeline before the action completes.
        action: The inflight action.
        change: What the action changes.
        replaced: Returns the file groups that completed replacecommits replaced.
        partitions: Partition paths.
        layout: The layout of the data timeline.
    """
    current = data.current(action)
    if current is None or current.state is not State.INFLIGHT:
        return None
    stored = metadata.listing(partitions)
    added = change.written.filter(members(change.written.column("partition"), partitions))
    files = data_files(pa.concat_tables([stored, added.cast(stored.schema)]))
    files = files.filter(pc.equal(files.column("suffix").fill_null(""), ""))
    after = data.transition(action, State.COMPLETED, _LAST)
    completed = after.current(action)
    assert completed is not None
    groups = (change.replaced.column(name).to_pylist() for name in ("partition", "file_id"))
    own = [
        Replaced(partition=partition, file_id=file_id, instant=completed)
        for partition, file_id in zip(*groups, strict=True)
    ]
    visible = visible_timeline(after, [*replaced(), *own])
    if unplaced_instants(files, visible, layout=layout):
        return None
    live = latest_columns(files, visible, layout=layout).files
    return pa.table({name: live.column(name).cast(pa.string()) for name in ("partition", "name")})
