"""Look staged keys up in file slices with logs, after base file and logs are merged.

The matches have the form that `key_matches` describes. `base_row` numbers the rows of the merged slice, and after them
the keys that a log deletes with an ordering value. An incoming row of such a key goes to the same file group, so that
it is visible only if it is not older than the delete. Hudi's simple index does the same because it finds the key in the
base file. Hudi's global index checks whether the row still exists, and inserts it again if not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.keys.key_lookup import (
    IN_PLACE,
    LOST,
    MOVED_OUT,
    Matches,
    StagedKeys,
    entry_parts,
    refuse_moves,
    staged_keys,
    staged_ordering,
    write_matches,
)
from lakehouse.core.files.keys.key_matches import DELETED
from lakehouse.core.files.keys.located_keys import located_keys
from lakehouse.core.files.log.log_reader import KEY, SliceContext
from lakehouse.core.files.log.slice_reader import SliceCounts, read_slice
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import TagResult, TagTask
from lakehouse.core.rows.record_merge import incoming_wins
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import FileSlice


def tag_slices(context: WriteContext, read: SliceContext, attempt: Attempt, task: TagTask) -> list[TagResult]:
    """Look the keys of the task up in its slices, and write the matches of each to the staging folder."""
    names = [KEY, *(context.rule.compared if context.move_partitions else ())]
    columns = pa.schema([field for field in read.table if field.name in names])
    results = []
    for number, file_slice in enumerate(task.slices):
        if task.located:
            keys = located_keys(context, task, number)
        else:
            keys = (
                StagedKeys(entries=part, keys=staged_keys(context, part))
                for part in entry_parts(task.entries, context.policy.memory_budget_bytes)
            )
        parts = [_find(context, read, file_slice, columns, staged) for staged in keys]
        tagged = write_matches(context, attempt, file_slice, task.entries, [matches for matches, _ in parts])
        results.append(replace(tagged, deleted_rows=sum(deleted for _, deleted in parts)))
    return results


def _find(
    context: WriteContext,
    read: SliceContext,
    file_slice: FileSlice,
    columns: pa.Schema,
    staged: StagedKeys,
) -> tuple[Matches, int]:
    """Return the matches, and the number of matches without a stored row, because the logs delete the key."""
    entries = staged.entries
    keys = staged.keys.combine_chunks() if isinstance(staged.keys, pa.ChunkedArray) else staged.keys
    rows, positions, orderings, start = [], [], [], 0
    counts = SliceCounts(
        deleted_keys=[] if context.layout.finds_deleted_keys and not context.incoming.deletes_only else None
    )
    for _, stored in read_slice(read, file_slice, columns, counts):
        staged_row = pc.index_in(stored.column(KEY), value_set=keys).combine_chunks()
        hit = np.flatnonzero(np.asarray(pc.is_valid(staged_row)))
        rows.append(hit + start)
        positions.append(staged_row.drop_null().to_numpy().astype(np.int64))
        if len(columns) > 1:
            orderings.append(stored.drop_columns([KEY]).take(pa.array(hit)))
        start += stored.num_rows
    empty = [np.array([], np.int64)]
    base_row, chosen = np.concatenate(rows or empty), np.concatenate(positions or empty)
    gone = np.setdiff1d(np.concatenate([_positions(some, keys) for some in counts.deleted_keys or ()] or empty), chosen)
    base_row, chosen = np.append(base_row, start + np.arange(len(gone))), np.append(chosen, gone)
    entry, position = staged.rows(chosen)
    kind = np.full(len(base_row), IN_PLACE, np.int8)
    if context.move_partitions and len(base_row):
        elsewhere = np.array([e.partition != file_slice.partition for e in entries])[entry]
        live = position < np.array([e.upserts for e in entries])[entry]
        moving = np.flatnonzero(elsewhere & live)
        kind[moving] = MOVED_OUT
        if len(moving):
            refuse_moves(context, len(moving))
        if orderings and len(moving):
            stored_ordering = pa.concat_tables(orderings).take(pa.array(moving))
            incoming = staged_ordering(context, entries, entry[moving], position[moving])
            wins = incoming_wins(context.rule, stored_ordering, incoming, None)
            kind[moving[~wins]] = LOST
    kind[len(base_row) - len(gone) :] = DELETED
    return staged.matches(base_row, entry, position, kind), len(gone)


def _positions(some: pa.ChunkedArray, keys: pa.Array) -> np.ndarray:
    """Return the positions in `keys` of the keys in `some`."""
    positions: np.ndarray = pc.index_in(some, value_set=keys).drop_null().to_numpy().astype(np.int64)
    return positions
