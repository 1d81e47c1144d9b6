"""Tasks of secondary indexes: the keys of a slice, and the keys that a commit adds to a file group and removes (MDT-4).

The keys of a slice before the commit are compared with its keys after it. A task writes the differences to the staging
folder, divided by file group of the index; only the names of these files return to the driver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.keys.changed_keys import ChangedKeysFile, by_number, write_divided
from lakehouse.core.files.log.log_reader import KEY, SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.format.metadata.groups import secondary_shards
from lakehouse.core.format.metadata.keys import secondary_keys
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import FileSlice

#: Keys of a secondary index that a commit adds, or removes.
CHANGED = pa.schema([("key", pa.string()), ("removed", pa.bool_())])
_DATE, _EPOCH = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedGroup:
    """The slice of a file group before a commit and after it; None if it has none.

    With `keeps` no key is removed, because concurrent writers append to the group and their rows are missing in the
    slice before the commit. Surplus keys are harmless, because readers check the rows.
    """

    before: FileSlice | None = None
    after: FileSlice | None = None
    keeps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedColumn:
    """The settings for the tasks of one index.

    Attributes:
        read: The settings for reading slices.
        column: The indexed column.
        directory: The directory for the files of tasks, relative to the table.
        groups: The number of file groups in the index.
        version: The version of its definition, "V1" or "V2", which decides how keys are distributed over the groups.
        output: The storage for task files, if it is not the storage of the table; `directory` is then in it.
    """

    read: SliceContext
    column: str
    directory: str
    groups: int
    version: str
    output: Storage | None = None

    @property
    def storage(self) -> Storage:
        """The storage for task files."""
        return self.output or self.read.storage


def text_refusal(kind: pa.DataType) -> str | None:
    """Return why values of a type cannot be stored in a secondary index, or None if they can.

    Only types for which Hudi certainly writes the same string are supported.
    """
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_boolean(kind):
        return None
    return f"a secondary index supports strings, integers, dates and booleans, but the column has the type {kind}"


def value_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the strings that represent values in secondary index keys: dates as days since 1970.

    Raises UnsupportedError for a type that has no such string.
    """
    refusal = text_refusal(values.type)
    if refusal is not None:
        raise UnsupportedError(refusal)
    plain = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
    return plain.cast(pa.string())


def searched_texts(values: pa.Array) -> pa.Array:
    """Return the strings under which an index may have rows with these values of its column.

    A string column may have been a date column; for dates the index stores days since 1970.
    """
    texts = value_texts(pa.chunked_array([values])).combine_chunks()
    if not pa.types.is_string(values.type):
        return texts
    dates = values.filter(pc.match_substring_regex(values, _DATE).fill_null(False))
    days = pa.array([_days(text) for text in dates.to_pylist()], pa.string()).drop_null()
    return pa.concat_arrays([texts, days])


def _days(text: str) -> str | None:
    try:
        return str((dt.date.fromisoformat(text) - _EPOCH).days)
    except ValueError:
        return None


def secondary_keys_of(read: SliceContext, column: str, file_slice: FileSlice) -> pa.Array:
    """Return the keys of a secondary index for the rows of a slice."""
    columns = pa.schema([read.table.field(KEY), read.table.field(column)])
    batches = []
    for _, rows in read_slice(read, file_slice, columns):
        batches.append(secondary_keys(value_texts(rows.column(column)), rows.column(KEY).cast(pa.string())))
    return pa.concat_arrays([*batches, pa.array([], pa.string())])


def keys_of_slice(column: IndexedColumn, _attempt: Attempt, file_slice: FileSlice) -> pa.Array:
    """Task: return the keys of one slice."""
    return secondary_keys_of(column.read, column.column, file_slice)


def find_changed_values(
    column: IndexedColumn, attempt: Attempt, groups: Sequence[IndexedGroup]
) -> ChangedKeysFile | None:
    """Write the changed keys of file groups to one file, grouped by file group of the index.

    Return None if no key changes.
    """
    path = f"{column.directory}/{attempt.token}.arrow"
    return write_divided(column.storage, path, _divided(column, groups))


def _divided(column: IndexedColumn, groups: Sequence[IndexedGroup]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for group in groups:
        changed = _changed(column, group)
        if changed.num_rows:
            keys = changed.column("key").combine_chunks()
            yield from by_number(changed, secondary_shards(keys, column.groups, column.version))


def _changed(column: IndexedColumn, group: IndexedGroup) -> pa.Table:
    before, after = (
        pa.array([], pa.string()) if piece is None else secondary_keys_of(column.read, column.column, piece)
        for piece in (group.before, group.after)
    )
    if group.keeps:
        return _rows(after, removed=False)
    added = after.filter(pc.invert(pc.is_in(after, value_set=before)))
    removed = before.filter(pc.invert(pc.is_in(before, value_set=after)))
    return pa.concat_tables([_rows(added, removed=False), _rows(removed, removed=True)])


def _rows(keys: pa.Array, *, removed: bool) -> pa.Table:
    return pa.table([keys, pa.repeat(pa.scalar(removed), len(keys))], CHANGED)
