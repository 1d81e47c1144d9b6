"""Find the record keys that a commit adds to file groups and removes from them, by reading the written files (MDT-4).

    added     the keys of a file group that the commit created
    removed   the keys of a file group that the commit replaced or deleted
    compared  the keys after the commit without those before it, and vice versa

Tasks read key columns and write the changed keys to the staging folder, grouped by file group of the record index. Only
the names of these files and the positions of their batches return to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.log.log_reader import KEY, SliceContext
from lakehouse.core.files.log.slice_reader import read_slice, stored_keys
from lakehouse.core.format.metadata.groups import shards
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import FileSlice

#: Changed keys with their file group; `removed` keys are no longer in it.
CHANGED = pa.schema(
    [
        ("key", pa.string()),
        ("partition", pa.string()),
        ("file_id", pa.string()),
        ("instant_ms", pa.int64()),
        ("removed", pa.bool_()),
    ]
)
_BATCH_ROWS = 131_072


class RecordLocations(Protocol):
    """The record index of a table."""

    def locations(self, keys: pa.Array, partitions: Sequence[str] | None = None) -> pa.Table:
        """Return key, partition, file_id and instant_ms for the keys with a location."""
        ...


class KeyChange(StrEnum):
    """How the keys of a file group change."""

    ADDED = "added"
    REMOVED = "removed"
    COMPARED = "compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedGroup:
    """A file group whose keys change: its slices before and after the change, depending on the kind of change.

    `instant_ms` is the time in milliseconds that the record index stores for added keys.
    """

    kind: KeyChange
    partition: str
    file_id: str
    instant_ms: int
    before: FileSlice | None = None
    after: FileSlice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The file groups of a record index.

    `groups` maps the data partition to the ids of its file groups, in the order of shards. A record index for the whole
    table has one entry, with the data partition "".
    """

    is_partitioned: bool
    groups: Mapping[str, tuple[str, ...]]

    @property
    def file_ids(self) -> tuple[str, ...]:
        """The ids of all file groups; the position is the number of a group."""
        return tuple(file_id for partition in sorted(self.groups) for file_id in self.groups[partition])

    def numbers(self, keys: pa.Array | pa.ChunkedArray, partition: str) -> np.ndarray:
        """Return the file group number for each key in a data partition.

        Raises CorruptTableError for a data partition without file groups.
        """
        name = partition if self.is_partitioned else ""
        if not self.groups.get(name):
            raise CorruptTableError(f"the record index has no file group for the keys of partition {name!r}")
        first = sum(len(self.groups[other]) for other in self.groups if other < name)
        return shards(keys, len(self.groups[name])) + first


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKeysContext:
    """The settings of the tasks that find changed keys.

    `directory` contains their files: relative to the table, or to `output` if that is given. With `with_repeated`
    the rows of a key that a file group has more often than before are changed keys, too.
    """

    read: SliceContext
    sharding: Sharding
    directory: str
    with_repeated: bool = False
    output: Storage | None = None

    @property
    def storage(self) -> Storage:
        """The storage for the files of changed keys."""
        return self.output or self.read.storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKeysFile:
    """The changed keys that one task found: the batches of its file by the number of the record index's file group."""

    path: str
    rows: int = 0
    batches: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def find_changed_keys(
    context: ChangedKeysContext, attempt: Attempt, groups: Sequence[ChangedGroup]
) -> ChangedKeysFile | None:
    """Write the changed keys of file groups to one file; return None if no key changes."""
    path = f"{context.directory}/{attempt.token}.arrow"
    return write_divided(context.storage, path, _divided(context, groups))


def write_divided(storage: Storage, path: str, pieces: Iterator[tuple[int, pa.RecordBatch]]) -> ChangedKeysFile | None:
    """Write batches to one file, each with the number of its file group in the index. Return None if there are none."""
    batches: dict[int, list[int]] = {}
    first = next(pieces, None)
    if first is None:
        return None
    written = rows = 0
    with storage.open_output(path) as sink, pa.ipc.new_file(sink, first[1].schema) as writer:
        piece: tuple[int, pa.RecordBatch] | None = first
        while piece is not None:
            number, batch = piece
            writer.write_batch(batch)
            batches.setdefault(number, []).append(written)
            written, rows = written + 1, rows + batch.num_rows
            piece = next(pieces, None)
    return ChangedKeysFile(path=path, rows=rows, batches={n: tuple(numbers) for n, numbers in batches.items()})


def changed_keys_of(
    storage: Storage, files: Sequence[ChangedKeysFile], number: int, schema: pa.Schema = CHANGED
) -> pa.Table:
    """Return the changed keys in one index file group, from the files of all tasks."""
    batches: list[pa.RecordBatch] = []
    for file in files:
        wanted = file.batches.get(number, ())
        if wanted:
            with storage.open_input(file.path) as source, pa.ipc.open_file(source) as reader:
                batches += [reader.get_batch(batch) for batch in wanted]
    return pa.Table.from_batches(batches, schema)


def changed_keys(read: SliceContext, group: ChangedGroup, *, with_repeated: bool = False) -> Iterator[pa.Table]:
    """Yield the changed keys of one file group, piece by piece; see `ChangedKeysContext.with_repeated`."""
    if group.kind is KeyChange.ADDED:
        assert group.after is not None, "an added group has a slice after the change"
        yield from (_changed(group, keys, removed=False) for keys in slice_keys(read, group.after))
    elif group.kind is KeyChange.REMOVED:
        assert group.before is not None, "a removed group has a slice before the change"
        yield from (_changed(group, keys, removed=True) for keys in slice_keys(read, group.before))
    else:
        before, after = (_all_keys(read, file_slice) for file_slice in (group.before, group.after))
        for keys, others, removed in ((after, before, False), (before, after, True)):
            changed = keys.filter(pc.invert(pc.is_in(keys, value_set=others)))
            if len(changed):
                yield _changed(group, changed, removed=removed)
        if with_repeated and len(repeated := _newly_repeated(after, before)):
            yield _changed(group, repeated, removed=False)


def _newly_repeated(after: pa.Array, before: pa.Array) -> pa.Array:
    """Return the keys, once for each row, that have several rows in `after`, and fewer but some in `before`."""
    counts = pc.value_counts(after)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if not len(twice):
        return after.slice(0, 0)
    earlier = pc.value_counts(before.filter(pc.is_in(before, value_set=twice.field("values"))))
    place = pc.index_in(twice.field("values"), value_set=earlier.field("values"))
    more = pc.greater(twice.field("counts"), earlier.field("counts").take(place))
    # Keys that are new in the group are changed keys already.
    return after.filter(pc.is_in(after, value_set=twice.field("values").filter(pc.fill_null(more, False))))


def slice_keys(read: SliceContext, file_slice: FileSlice) -> Iterator[pa.Array]:
    """Yield the record keys of a slice's rows, piece by piece."""
    if not file_slice.logs:
        assert file_slice.base is not None, "a slice has a base file or logs"
        reader = BaseFileReader(read.storage, file_slice.base.path)
        try:
            yield from (keys.cast(pa.string()) for keys in stored_keys(read, reader))
        finally:
            reader.close()
        return
    columns = pa.schema([read.table.field(KEY)])
    for _, rows in read_slice(read, file_slice, columns):
        yield from (chunk.cast(pa.string()) for chunk in rows.column(KEY).chunks)


def _all_keys(read: SliceContext, file_slice: FileSlice | None) -> pa.Array:
    pieces = [] if file_slice is None else list(slice_keys(read, file_slice))
    return pa.concat_arrays([*pieces, pa.array([], pa.string())])


def _changed(group: ChangedGroup, keys: pa.Array, *, removed: bool) -> pa.Table:
    count = len(keys)
    columns = [
        keys,
        pa.repeat(group.partition, count),
        pa.repeat(group.file_id, count),
        pa.repeat(pa.scalar(group.instant_ms, pa.int64()), count),
        pa.repeat(pa.scalar(removed), count),
    ]
    return pa.table(columns, CHANGED)


def _divided(context: ChangedKeysContext, groups: Sequence[ChangedGroup]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of the record index's file group, changed keys); small pieces of several groups are combined."""
    pending: list[pa.Table] = []
    numbers: list[np.ndarray] = []
    rows = 0
    for group in groups:
        for piece in changed_keys(context.read, group, with_repeated=context.with_repeated):
            if piece.num_rows:
                pending.append(piece)
                numbers.append(context.sharding.numbers(piece.column("key"), group.partition))
                rows += piece.num_rows
            if rows >= _BATCH_ROWS:
                yield from by_number(pa.concat_tables(pending), np.concatenate(numbers))
                pending, numbers, rows = [], [], 0
    if pending:
        yield from by_number(pa.concat_tables(pending), np.concatenate(numbers))


def by_number(changed: pa.Table, numbers: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each number, in ascending order."""
    order = np.argsort(numbers, kind="stable")
    changed, numbers = changed.take(pa.array(order)).combine_chunks(), numbers[order]
    starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        for batch in changed.slice(int(start), int(end - start)).to_batches():
            yield int(numbers[start]), batch
