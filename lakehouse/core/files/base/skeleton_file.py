"""Read a skeleton file of a bootstrapped table together with its source file, joined by the position of rows.

    skeleton |meta columns    | 300 rows in 1 row group      row groups and pages of the two files differ,
    source   |data columns    | 300 rows in 8 row groups     but row n of the one belongs to row n of the other

Row groups of a joined file are the row groups of the source, which is much larger. A partition column that the source
files lack, because it is in the names of their folders, is a constant that the partition path contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.bootstrap_index import (
    FILE_INDEX,
    SourceFile,
    decode_source,
    file_key,
)
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.format.properties import parse_properties
from lakehouse.core.rows.partition_path import parse_partition_path
from lakehouse.core.storage.locate import open_beside
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType

_PROPERTIES = ".hoodie/hoodie.properties"


class _Index:
    """The bootstrap index of one table, and the partition fields of the table."""

    def __init__(self, storage: Storage) -> None:
        try:
            self._file: HFile = read_hfile(storage.get(FILE_INDEX), name=f"{storage.root}/{FILE_INDEX}")
            raw = parse_properties(storage.get(_PROPERTIES))
        except NotFoundError as error:
            raise CorruptTableError(
                f"{storage.root}: {error.message}. The table has skeleton files of a bootstrap, whose data columns are "
                "in other files; this file says in which. Restore it from a backup",
                path=FILE_INDEX,
            ) from error
        self._keys = _partition_keys(raw)

    def source(self, partition: str, file_id: str) -> SourceFile | None:
        """Return the source file of a skeleton file; None if the index lacks it."""
        entries = self._file.find(pa.array([file_key(partition, file_id)], pa.binary()))
        return decode_source(entries.column("value")[0].as_py()) if entries.num_rows else None

    def partition_values(self, partition: str) -> dict[str, str | None]:
        """Return the value of each partition field in a partition path, as a string."""
        names = self._keys.partition_fields
        if not names:
            return {}
        # Hudi keeps the names of the source folders, whatever the property of the table says.
        hive_style = partition.startswith(f"{names[0]}=")
        keys = KeyConfig(
            generator=self._keys.generator,
            record_key_fields=(),
            partition_fields=names,
            hive_style=hive_style,
            url_encode=hive_style or self._keys.url_encode,
        )
        return dict(zip(names, parse_partition_path(partition, keys), strict=True))


#: The index of each open store. Its entries never change, and a missing one is looked up again.
_indexes: WeakKeyDictionary[Storage, _Index] = WeakKeyDictionary()


def _partition_keys(raw: dict[str, str]) -> KeyConfig:
    declared = raw.get("hoodie.table.partition.fields", "")
    return KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=(),
        partition_fields=tuple(name.split(":", 1)[0].strip() for name in declared.split(",") if name.strip()),
        url_encode=raw.get("hoodie.datasource.write.partitionpath.urlencode", "").strip().lower() == "true",
    )


def join_source(
    storage: Storage,
    path: str,
    skeleton: pq.ParquetFile,
    footer: pq.FileMetaData | None = None,
    *,
    prefetches: bool = False,
) -> JoinedFile:
    """Return an open skeleton file joined with its source file.

    Args:
        storage: The storage of the table.
        path: The path of the skeleton file.
        skeleton: The open skeleton file. The result closes it.
        footer: The footer of the source file, if it was read before.
        prefetches: As in `BaseFileReader`.

    Raises:
        CorruptTableError: The index lacks the file, or the source file is missing, or has changed.
    """
    partition, _, name = path.rpartition("/")
    parsed = parse_base_file(name, partition, 0)
    assert parsed is not None, f"{path} is the path of a base file"
    index, source = _find_source(storage, partition, parsed.file_id)
    where = f"{storage.root}/{path}: the rows of this skeleton file have their data columns in {source.uri}"
    folder, _, source_name = source.uri.rpartition("/")
    try:
        stored = open_beside(storage, folder).open_input(source_name)
    except NotFoundError as error:
        raise CorruptTableError(
            f"{where}, which does not exist. Restore it: a table that was bootstrapped by metadata only needs its "
            "source files until its file groups are rewritten",
            path=path,
        ) from error
    file = pq.ParquetFile(stored, metadata=footer, pre_buffer=prefetches, coerce_int96_timestamp_unit="us")
    rows = skeleton.metadata.num_rows
    if file.metadata.num_rows != rows or (source.size_bytes and stored.size() != source.size_bytes):
        raise CorruptTableError(
            f"{where}, which has {file.metadata.num_rows} rows in {stored.size()} bytes; at the bootstrap it had "
            f"{rows} rows in {source.size_bytes} bytes. Restore the source file as it was: its rows no longer match",
            path=path,
        )
    if repeated := [name for name in file.schema_arrow.names if name in META_COLUMNS]:
        raise UnsupportedError(
            f"{where}, which has the meta columns {', '.join(repeated)} itself: it was a base file of another table. "
            "Bootstrap that table with full records",
            path=path,
        )
    return JoinedFile(skeleton, file, index.partition_values(partition))


def source_of(storage: Storage, partition: str, file_id: str) -> SourceFile:
    """Return the source file of a skeleton file. Raises CorruptTableError if the bootstrap index lacks it."""
    return _find_source(storage, partition, file_id)[1]


def _find_source(storage: Storage, partition: str, file_id: str) -> tuple[_Index, SourceFile]:
    index = _indexes.get(storage)
    source = None if index is None else index.source(partition, file_id)
    if index is None or source is None:
        index = _indexes[storage] = _Index(storage)
        source = index.source(partition, file_id)
    if source is None:
        raise CorruptTableError(
            f"{storage.root}/{FILE_INDEX} has no entry for the file id {file_id} of partition {partition!r}, so the "
            "data columns of this skeleton file cannot be found",
            path=FILE_INDEX,
        )
    return index, source


class JoinedFile:
    """The rows of a skeleton file and its source file; it has the methods of `pq.ParquetFile` that readers use."""

    def __init__(self, skeleton: pq.ParquetFile, source: pq.ParquetFile, folders: dict[str, str | None]) -> None:
        self._skeleton, self._source = skeleton, source
        data = [field for field in source.schema_arrow if field.name not in META_COLUMNS]
        self._data = frozenset(field.name for field in data)
        self._folders = {name: value for name, value in folders.items() if name not in self._data}
        constants = [pa.field(name, pa.string()) for name in self._folders]
        self.schema_arrow = pa.schema([*skeleton.schema_arrow, *data, *constants])

    def __enter__(self) -> JoinedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer of the source file: its row groups, and the statistics of the data columns."""
        return self._source.metadata

    @property
    def key_values(self) -> pq.FileMetaData:
        """The footer of the skeleton file: its statistics, and the range and the bloom filter of its keys."""
        return self._skeleton.metadata

    @property
    def footers(self) -> tuple[pq.FileMetaData, ...]:
        """The footers with statistics of different columns."""
        return (self._skeleton.metadata, self._source.metadata)

    @property
    def constants(self) -> dict[str, str | None]:
        """The columns that only the names of folders contain, with their value in all rows."""
        return dict(self._folders)

    def read(self, columns: Sequence[str], *, use_threads: bool = False) -> pa.Table:
        """Return whole columns."""
        pieces = list(self.iter_batches(columns=columns, use_threads=use_threads))
        if not pieces:
            return pa.schema([self.schema_arrow.field(name) for name in columns]).empty_table()
        return pa.Table.from_batches(pieces)

    def iter_batches(
        self,
        batch_size: int = 65_536,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] = (),
        *,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some source row groups, in at most `batch_size` rows per batch."""
        names = self._skeleton.schema_arrow.names
        meta = [name for name in columns if name in names]
        data = [name for name in columns if name in self._data]
        sides: list[Iterator[pa.RecordBatch]] = []
        if data:
            groups = None if row_groups is None else list(row_groups)
            sides.append(self._source.iter_batches(batch_size, groups, data, use_threads=use_threads))
        if meta or not data:
            # Without a column of a file, one meta column tells the number of rows.
            read = meta or [META_COLUMNS[3]]
            sides.append(self._skeleton_rows(batch_size, row_groups, read, use_threads=use_threads))
        for pieces in aligned(sides):
            yield self._batch(columns, pieces)

    def close(self) -> None:
        """Close both files."""
        self._skeleton.close()
        self._source.close()

    def _batch(self, columns: Sequence[str], pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pieces[0].num_rows
        stored = {name: piece.column(name) for piece in pieces for name in piece.schema.names}
        arrays = [
            stored[name] if name in stored else pa.repeat(pa.scalar(self._folders[name], pa.string()), rows)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _skeleton_rows(
        self, batch_size: int, row_groups: Sequence[int] | None, columns: list[str], *, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the skeleton rows at the positions that some source row groups have."""
        if row_groups is None:
            yield from self._skeleton.iter_batches(batch_size, None, columns, use_threads=use_threads)
            return
        starts, own = _starts(self._source.metadata), _starts(self._skeleton.metadata)
        for group in row_groups:
            first, last = int(starts[group]), int(starts[group + 1])
            touched = np.flatnonzero((own[:-1] < last) & (own[1:] > first)).tolist()
            at = int(own[touched[0]]) if touched else last
            for batch in self._skeleton.iter_batches(batch_size, touched, columns, use_threads=use_threads):
                begin, end = max(first - at, 0), min(last - at, batch.num_rows)
                at += batch.num_rows
                if begin < end:
                    yield batch.slice(begin, end - begin)


def _starts(footer: pq.FileMetaData) -> np.ndarray[Any, Any]:
    """Return the first row number per row group, and the number of all rows."""
    counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def aligned(sides: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """Yield batches of several inputs with equal numbers of rows; the inputs have the same rows in the same order.

    Raises CorruptTableError if an input ends before the others.
    """
    pending: list[pa.RecordBatch | None] = [None] * len(sides)
    while True:
        for number, side in enumerate(sides):
            while (held := pending[number]) is None or not held.num_rows:
                pending[number] = next(side, None)
                if pending[number] is None:
                    break
        held_rows = [0 if batch is None else batch.num_rows for batch in pending]
        rows = min(held_rows)
        if not rows:
            if any(held_rows):
                raise CorruptTableError("a skeleton file and its source file have different numbers of rows")
            return
        pieces = [batch for batch in pending if batch is not None]
        yield tuple(batch.slice(0, rows) for batch in pieces)
        pending = [batch.slice(rows) for batch in pieces]
