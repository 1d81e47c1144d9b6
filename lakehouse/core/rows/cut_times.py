"""Count the rows of a batch whose times have digits below the microsecond: tables store microseconds.

The write cuts these digits off (`core.format.nanoseconds`), and its commit reports the counts as column drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.nanoseconds import is_nanos, loses_digits
from lakehouse.model.drift import ColumnDrift, Drift

#: The types before and after the cut, without zones.
_BEFORE, _AFTER = str(pa.timestamp("ns")), str(pa.timestamp("us"))


def has_nanos(kind: pa.DataType) -> bool:
    """Return whether a type is or contains a timestamp in nanoseconds."""
    # Iterative, because types that are nested too deeply are only refused after this check.
    waiting = [kind]
    while waiting:
        part = waiting.pop()
        if pa.types.is_dictionary(part):
            waiting.append(part.value_type)
        elif pa.types.is_nested(part):
            waiting += [part.field(number).type for number in range(part.num_fields)]
        elif is_nanos(part):
            return True
    return False


@dataclass(slots=True)
class CutTimes:
    """Counts the rows of a batch whose times have digits below the microsecond, by dotted column name."""

    rows: Counter[str] = field(default_factory=Counter)

    def drift(self, schema: pa.Schema) -> tuple[ColumnDrift, ...]:
        """Return the drift of the columns that a write with these data columns stores."""
        return tuple(
            ColumnDrift(column=name, change=Drift.ROUNDED, rows=count, before=_BEFORE, after=_AFTER)
            for name, count in sorted(self.rows.items())
            if count and name.partition(".")[0] in schema.names
        )

    def watch(self, frame: Any) -> Any:
        """Return a frame with the same rows; rows of Arrow data are counted when they are read."""
        if not isinstance(frame, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            return frame
        names = [column.name for column in frame.schema if has_nanos(column.type) and column.name not in META_COLUMNS]
        if names and isinstance(frame, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(frame.schema, self._watched(frame, names))
        for name in names:
            self._add(name, frame.column(name))
        return frame

    def _watched(self, reader: pa.RecordBatchReader, names: list[str]) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            for name in names:
                self._add(name, batch.column(name))
            yield batch

    def _add(self, name: str, column: pa.Array | pa.ChunkedArray) -> None:
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
            for leaf, mask in _cut(chunk, name):
                self.rows[leaf] += int(np.count_nonzero(mask))


def _cut(array: pa.Array, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each leaf column in nanoseconds, and the mask of the rows with a value that loses digits."""
    kind = array.type
    if not has_nanos(kind):
        return
    if pa.types.is_dictionary(kind):
        yield from _cut(array.dictionary_decode(), name)
    elif is_nanos(kind):
        yield name, loses_digits(array)
    elif pa.types.is_struct(kind):
        for number, inner in enumerate(kind):
            yield from _cut(pc.struct_field(array, [number]), f"{name}.{inner.name}")
    else:
        yield from _cut_in_lists(array, name)


def _cut_in_lists(array: pa.Array, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the leaves of a list or map; a row counts once, however many of its values lose digits."""
    is_map = pa.types.is_map(array.type)
    lists = array.cast(pa.list_(pa.struct(list(_entry_fields(array.type))))) if is_map else array
    rows = np.asarray(pc.list_parent_indices(lists))
    values = pc.list_flatten(lists)
    for leaf, mask in _cut(values, name if is_map else f"{name}.element"):
        hit = np.zeros(len(array), bool)
        hit[rows[mask]] = True
        yield leaf, hit


def _entry_fields(kind: pa.MapType) -> Iterator[pa.Field]:
    yield pa.field("key", kind.key_type, nullable=False)
    yield pa.field("value", kind.item_type, kind.item_field.nullable)
