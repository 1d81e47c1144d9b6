"""File slices as columns: a sequence of FileSlice whose files are rows of one Arrow table.

The files of a slice are consecutive rows: the base file first, if there is one, then the log files in merge order. A
slice has at least one file. Kernels filter slices by partition, size or statistics. FileSlice objects are made only for
the slices that a caller iterates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.state.data_files import DATA_FILES, file_objects, files_table, members, one_array
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import METADATA_BOOTSTRAP

_AT_ONCE = 1_024


class FileSlices(Sequence[FileSlice]):
    """An ordered sequence of slices.

    `files` has the columns of `data_files`; `starts` contains the first row of each slice, and the end.
    """

    __slots__ = ("files", "starts")

    def __init__(self, files: pa.Table, starts: np.ndarray[Any, Any]) -> None:
        self.files = files
        self.starts = starts

    @classmethod
    def of(cls, slices: Iterable[FileSlice]) -> FileSlices:
        """Return slice objects as columns; a FileSlices is returned unchanged."""
        if isinstance(slices, FileSlices):
            return slices
        filled = [piece for piece in slices if piece.base is not None or piece.logs]
        files = [f for piece in filled for f in (*((piece.base,) if piece.base is not None else ()), *piece.logs)]
        counts = [len(piece.logs) + (piece.base is not None) for piece in filled]
        return cls(files_table(files), np.concatenate(([0], np.cumsum(counts, dtype=np.int64))))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> FileSlice: ...
    @overload
    def __getitem__(self, index: slice) -> FileSlices: ...
    def __getitem__(self, index: int | slice) -> FileSlice | FileSlices:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        return next(self._objects(number, number + 1))

    def __iter__(self) -> Iterator[FileSlice]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self._objects(first, min(first + _AT_ONCE, len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FileSlices):
            return np.array_equal(self.starts, other.starts) and self.files.equals(other.files)
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(FileSlice.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FileSlices({len(self)} slices, {self.files.num_rows} files)"

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSlices, (self.files, self.starts)

    @property
    def partitions(self) -> pa.Array:
        """The partition of each slice."""
        return self._first("partition")

    @property
    def file_ids(self) -> pa.Array:
        """The file id of each slice."""
        return self._first("file_id")

    @property
    def base_instants(self) -> pa.Array:
        """The instant of each slice: from its base file, or from its first log."""
        return self._first("instant")

    @property
    def log_counts(self) -> np.ndarray[Any, Any]:
        """The number of log files per slice."""
        counts: np.ndarray[Any, Any] = np.diff(self.starts) - self.has_base
        return counts

    @property
    def has_base(self) -> np.ndarray[Any, Any]:
        """Whether each slice has a base file."""
        flags: np.ndarray[Any, Any] = ~self._first("is_log").to_numpy(zero_copy_only=False).astype(bool)
        return flags

    @property
    def is_skeleton(self) -> np.ndarray[Any, Any]:
        """Whether the base file of each slice is a skeleton file of a bootstrap, which is smaller than its data."""
        flags: np.ndarray[Any, Any] = self.flags(pc.equal(self.base_instants, METADATA_BOOTSTRAP)) & self.has_base
        return flags

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        """The total file size per slice in bytes."""
        return self.sums(one_array(self.files.column("size_bytes")).to_numpy())

    @property
    def base_sizes(self) -> np.ndarray[Any, Any]:
        """The base file size per slice in bytes; 0 if the slice has no base file."""
        first: np.ndarray[Any, Any] = self._first("size_bytes").to_numpy(zero_copy_only=False)
        return np.where(self.has_base, first, 0)

    @property
    def bytes(self) -> int:
        """The size of all files in bytes."""
        return int(pc.sum(self.files.column("size_bytes")).as_py() or 0)

    @property
    def partition_count(self) -> int:
        """The number of different partitions."""
        return int(pc.count_distinct(self.files.column("partition")).as_py())

    @property
    def slice_of_file(self) -> np.ndarray[Any, Any]:
        """The slice number for each row of `files`."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def partition_bytes(self) -> dict[str, int]:
        """Return the total file size per partition in bytes."""
        sums = self.files.select(["partition", "size_bytes"]).group_by("partition").aggregate([("size_bytes", "sum")])
        return dict(zip(sums["partition"].to_pylist(), sums["size_bytes_sum"].to_pylist(), strict=True))

    def sums(self, of_files: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sum per slice over a number per file."""
        totals = np.concatenate(([0], np.cumsum(of_files, dtype=np.int64)))
        sums: np.ndarray[Any, Any] = totals[self.starts[1:]] - totals[self.starts[:-1]]
        return sums

    def any_file(self, of_files: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return whether a flag is set for at least one file of each slice."""
        return self.sums(of_files) > 0

    def flags(self, of_slices: pa.Array) -> np.ndarray[Any, Any]:
        """Convert flags of the slices from an Arrow array to a NumPy array."""
        flags: np.ndarray[Any, Any] = of_slices.to_numpy(zero_copy_only=False).astype(bool)
        return flags

    def ordered(self) -> FileSlices:
        """Return the slices ordered by partition and file id; slices of a listing are in this order."""
        partitions, file_ids = self.partitions, self.file_ids
        keys = pc.binary_join_element_wise(partitions, file_ids, "\0")
        if len(self) < 2 or not pc.any(pc.less(keys[1:], keys[:-1])).as_py():
            return self
        names = {"partition": partitions, "file_id": file_ids}
        order = pc.sort_indices(pa.table(names), sort_keys=[(name, "ascending") for name in names])
        return self.take(order.to_numpy())

    def filter(self, mask: np.ndarray[Any, Any] | pa.Array) -> FileSlices:
        """Return the slices whose flag is set."""
        flags = mask.to_numpy(zero_copy_only=False).astype(bool) if isinstance(mask, pa.Array) else mask
        return self if flags.all() else self.take(np.flatnonzero(flags))

    def in_groups(self, groups: Collection[tuple[str, str]]) -> FileSlices:
        """Return the slices of these file groups (partition, file id)."""
        return self.filter(self.is_in_groups(groups))

    def is_in_groups(self, groups: Collection[tuple[str, str]]) -> np.ndarray[Any, Any]:
        """Return whether each slice belongs to one of these file groups (partition, file id)."""
        if not groups:
            return np.zeros(len(self), bool)
        wanted = pa.array([f"{partition}\0{file_id}" for partition, file_id in groups], pa.string())
        keys = pc.binary_join_element_wise(self.partitions, self.file_ids, "\0")
        flags: np.ndarray[Any, Any] = members(keys, wanted).to_numpy(zero_copy_only=False).astype(bool)
        return flags

    def take(self, numbers: np.ndarray[Any, Any]) -> FileSlices:
        """Return the slices with these numbers, in this order."""
        counts = np.diff(self.starts)[numbers]
        starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        rows = np.repeat(self.starts[:-1][numbers] - starts[:-1], counts) + np.arange(starts[-1])
        return FileSlices(self.files.take(pa.array(rows)), starts)

    def base_only(self) -> FileSlices:
        """Return the slices that have a base file, without their log files (read-optimized)."""
        rows = self.starts[:-1][self.has_base]
        return FileSlices(self.files.take(pa.array(rows)), np.arange(len(rows) + 1, dtype=np.int64))

    def bases(self) -> tuple[BaseFile, ...]:
        """Return the base files as objects."""
        rows = self.starts[:-1][self.has_base]
        return tuple(f for f in file_objects(self.files.take(pa.array(rows))) if isinstance(f, BaseFile))

    def _first(self, name: str) -> pa.Array:
        return one_array(self.files.column(name)).take(pa.array(self.starts[:-1]))

    def _objects(self, first: int, last: int) -> Iterator[FileSlice]:
        begin = int(self.starts[first])
        files = list(file_objects(self.files.slice(begin, int(self.starts[last]) - begin)))
        for number in range(first, last):
            slice_files = files[int(self.starts[number]) - begin : int(self.starts[number + 1]) - begin]
            base = slice_files[0] if isinstance(slice_files[0], BaseFile) else None
            yield FileSlice(
                partition=slice_files[0].partition,
                file_id=slice_files[0].file_id,
                base_instant=slice_files[0].instant,
                base=base,
                logs=tuple(f for f in slice_files if isinstance(f, LogFile)),
            )


EMPTY = FileSlices(DATA_FILES.empty_table(), np.zeros(1, dtype=np.int64))
