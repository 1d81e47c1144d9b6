"""Read base files and convert their columns to the schema of the table (DATA-3.2, DATA-11)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.nanoseconds import is_nanos, to_micros
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.rows.casting import entries_of, rebased_offsets
from lakehouse.core.rows.key_values import value_text
from lakehouse.core.rows.stored_names import by_current_names, is_skeleton, path_instant, stored_name, stored_names
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, UserError

if TYPE_CHECKING:
    # Few tables have skeleton files, so that others do not load the module.
    from lakehouse.core.files.base.skeleton_file import JoinedFile

_SKELETON_FILE = "lakehouse.core.files.base.skeleton_file"
#: The footer keys for the bloom filter and its type.
BLOOM_FOOTER = ("org.apache.hudi.bloomfilter", "hoodie_bloom_filter_type_code")
_BATCH_ROWS = 131_072
_MICROS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
_MIN_BATCH_ROWS = 1_024
_SMALL_VALUE = 1 << 16
_BYTES = "BYTE_ARRAY"
# Meta columns with few distinct values. They remain dictionary-encoded when rows are copied from file to file.
REPEATING = [META_COLUMNS[0], META_COLUMNS[3], META_COLUMNS[4]]
REPEATED = pa.dictionary(pa.int32(), pa.string())


class MissingFileError(CorruptTableError, NotFoundError):
    """A committed data file does not exist; `path` is relative to the table."""


@contextmanager
def committed_file(root: str, path: str) -> Iterator[None]:
    """Convert NotFoundError to MissingFileError while a committed data file is opened.

    The metadata table lists files without asking storage, so a file that was lost is noticed only when it is opened.
    """
    try:
        yield
    except MissingFileError:
        raise
    except NotFoundError as error:
        raise MissingFileError(
            f"{root}/{path} does not exist although the table names it: it was lost, or a clean removed it after the "
            "read was planned. Plan the read again; if the file is lost, restore it from a backup or restore a version "
            "without it: `lakehouse restore run`. To continue without its rows, set lakehouse.damaged.files=skip",
            path=path,
        ) from error


def open_columns(storage: Storage, path: str) -> pq.ParquetFile | JoinedFile:
    """Open a base file for reads of columns; a skeleton file is joined with its source file.

    Raises NotFoundError, and CorruptTableError if the source file is missing or has changed.
    """
    file = pq.ParquetFile(storage.open_input(path))
    if not is_skeleton(path):
        return file
    joined: JoinedFile = import_module(_SKELETON_FILE).join_source(storage, path, file)
    return joined


class BaseFileReader:
    """An open base file: its footer, columns and batches of rows.

    Args:
        storage: The storage of the table.
        path: The path of the file in it.
        footer: The footer, if it was read before.
        prefetches: Fetch the needed parts of the row groups in few large requests before they are decoded. All of them
            are in memory then, so read few row groups.
    """

    def __init__(
        self, storage: Storage, path: str, footer: pq.FileMetaData | None = None, *, prefetches: bool = False
    ) -> None:
        self.path, self._root = path, storage.root
        #: The instant in the name of the file, which decides the names of columns in it.
        self.instant = path_instant(path)
        #: Whether this is a skeleton file of a bootstrapped table, whose data columns are in a source file.
        self.is_skeleton = is_skeleton(path)
        self._file: pq.ParquetFile | JoinedFile
        try:
            with committed_file(storage.root, path), self._readable():
                own_footer = None if self.is_skeleton else footer
                file = pq.ParquetFile(
                    storage.open_input(path), metadata=own_footer, pre_buffer=prefetches, read_dictionary=REPEATING
                )
                self._file = file
                if self.is_skeleton:
                    joined = import_module(_SKELETON_FILE).join_source
                    self._file = joined(storage, path, file, footer, prefetches=prefetches)
        except KeyError as error:
            raise CorruptTableError(
                f"{storage.root}/{path} is named like a base file but lacks the meta column {error}", path=path
            ) from error
        self._own_footer: pq.FileMetaData = file.metadata
        self.rows: int = self._own_footer.num_rows
        # Metadata without the footer values, because they contain the large bloom filter.
        self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
        self._small: dict[bytes, bytes] | None = None

    def footer(self, key: str) -> str | None:
        """Return a footer value, or None if it is absent. Raises CorruptTableError for a value that is not a string."""
        wanted = key.encode()
        if self._small is None or (wanted in self._small and not self._small[wanted]):
            # Each access of `metadata` copies all values, so small values are cached. For large values only the
            # names are cached.
            values = self._own_footer.metadata or {}
            self._small = {name: value if len(value) <= _SMALL_VALUE else b"" for name, value in values.items()}
            value = values.get(wanted)
        else:
            value = self._small.get(wanted)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as error:
            raise CorruptTableError(
                f"{self._root}/{self.path}: the value {key} of its footer is not text: {error}", path=self.path
            ) from error

    @property
    def statistics(self) -> pq.FileMetaData:
        """The footer with the row groups and the statistics of data columns: for a skeleton file, of its source."""
        return self._file.metadata

    def bloom_filter(self) -> BloomFilter | None:
        """Return the bloom filter; None if there is none. Raises CorruptTableError for an invalid filter."""
        text, type_code = (self.footer(key) for key in BLOOM_FOOTER)
        if not text:
            return None
        try:
            return BloomFilter.from_text(text, type_code)
        except CorruptTableError as error:
            raise CorruptTableError(f"{self._root}/{self.path}: {error.message}", path=self.path) from error

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole column in its stored form."""
        with self._readable():
            return self._file.read(columns=[name], use_threads=False).column(0)

    def rows_within(self, size_bytes: int, columns: pa.Schema | None = None) -> int:
        """Return how many decoded rows take about `size_bytes`, but at most the rows of a usual batch.

        `columns` are the columns that are read; None: all.
        """
        metadata = self._file.metadata
        encoded = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        count = metadata.num_columns
        if columns is not None and metadata.num_row_groups:
            # The columns take the same part of the other row groups.
            sizes = self._decoded_sizes(stored_names(columns, self.instant).values())
            encoded, count = int(encoded * sum(sizes) / max(metadata.row_group(0).total_byte_size, 1)), len(sizes)
        # Values that are small when encoded, such as constants, take about ten bytes each when decoded.
        width = encoded / max(self.rows, 1) + 10 * max(count, 1)
        return min(max(int(size_bytes / width), _MIN_BATCH_ROWS), _BATCH_ROWS)

    def _decoded_sizes(self, columns: Collection[str]) -> list[int]:
        """Return about the sizes of some columns in the first row group.

        A long string that many rows have takes little space in the file; its length is in the statistics.
        """
        group, schema, wanted = self._file.metadata.row_group(0), self._file.metadata.schema, set(columns)
        sizes = []
        for number in range(group.num_columns):
            leaf = schema.column(number)
            if leaf.path.partition(".")[0] in wanted:
                chunk = group.column(number)
                longest = max(map(len, _bounds(chunk.statistics)), default=0) if leaf.physical_type == _BYTES else 0
                sizes.append(max(chunk.total_uncompressed_size, longest * chunk.num_values))
        return sizes

    def has_values(self, name: str) -> bool:
        """Return whether a column has a value in some row, by its statistics. Without statistics it returns True."""
        metadata = self._own_footer if name in self._own_footer.schema.names else self._file.metadata
        column = metadata.schema.names.index(name)
        for number in range(metadata.num_row_groups):
            statistics = metadata.row_group(number).column(column).statistics
            if statistics is None or statistics.num_values:
                return True
        return self.rows == 0

    def text_bounds(self, name: str, group: int) -> tuple[str, str] | None:
        """Return bounds of the strings of a column in a row group; None if the footer states none."""
        column = self._file.metadata.schema.names.index(name) if name in self._file.metadata.schema.names else -1
        chunk = None if column < 0 else self._file.metadata.row_group(group).column(column)
        bounds = () if chunk is None else _bounds(chunk.statistics)
        return (bounds[0], bounds[1]) if bounds and all(isinstance(bound, str) for bound in bounds) else None

    def column_batches(self, name: str, rows: int, groups: Sequence[int] | None = None) -> Iterator[pa.Array]:
        """Yield a column as it is stored, in arrays of at most `rows` values; `groups` as in `batches`."""
        for batch in self._batches([name], rows, groups):
            yield batch.column(0)

    def batches(
        self, schema: pa.Schema, rows: int = _BATCH_ROWS, groups: Sequence[int] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows in file order as tables of `schema`; columns that the file lacks are null.

        `groups` are the numbers of the row groups to read; None: all.
        """
        stored = set(self.schema.names)
        columns = [name for name in stored_names(schema, self.instant).values() if name in stored]
        if not columns:
            metadata = self._file.metadata
            total = self.rows if groups is None else sum(metadata.row_group(number).num_rows for number in groups)
            yield from (align(pa.table({"": pa.nulls(n)}), schema, n) for n in _chunks(total, rows))
            return
        for batch in self._batches(columns, rows, groups):
            rows_of_batch = by_current_names(pa.Table.from_batches([batch]), schema, self.instant)
            yield align(rows_of_batch, schema, batch.num_rows)

    def stored_name(self, field: pa.Field) -> str | None:
        """Return the name that a column of the table has in the file, or None if the file lacks it."""
        name = stored_name(field, self.instant)
        return name if name in self.schema.names else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _batches(self, columns: list[str], rows: int, groups: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
        batches = self._file.iter_batches(batch_size=rows, row_groups=groups, columns=columns, use_threads=False)
        while True:
            with self._readable():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _readable(self) -> AbstractContextManager[None]:
        return readable(self._root, self.path)


def _bounds(statistics: pq.Statistics | None) -> tuple[Any, ...]:
    """Return the lower and the upper bound; empty if the footer states none that can be read."""
    if statistics is None or not statistics.has_min_max:
        return ()
    try:
        return statistics.min, statistics.max
    except UnicodeDecodeError:
        return ()  # some writers cut the bounds of long strings within a character


@contextmanager
def readable(root: str, path: str) -> Iterator[None]:
    """Raise CorruptTableError if Arrow cannot decode a file. System errors, which have an errno, are passed on."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise CorruptTableError(f"{root}/{path} is not a readable Parquet file: {error}", path=path) from error


def align(rows: pa.Table, schema: pa.Schema, count: int | None = None, *, exact: bool = False) -> pa.Table:
    """Return `rows` with exactly the columns of `schema`: matched by name, cast to its types, null if absent.

    Args:
        rows: The rows to convert.
        schema: The columns of the result.
        count: The number of rows, if `rows` has no columns.
        exact: Refuse to convert a number that would lose digits. Otherwise numbers are promoted as in Hudi.

    Raises:
        UserError: A column has values that its type in `schema` cannot represent.
        CorruptTableError: A dictionary is invalid.
    """
    length = rows.num_rows if count is None else count
    columns = []
    for field in schema:
        position = rows.schema.get_field_index(field.name)
        try:
            column = (
                pa.nulls(length, field.type)
                if position < 0
                else convert(rows.column(position), field.type, exact=exact)
            )
        except pa.ArrowInvalid as error:
            raise UserError(f"column {field.name!r} cannot be {field.type}: {error}", column=field.name) from error
        except pa.ArrowIndexError as error:
            raise CorruptTableError(f"column {field.name!r} has an invalid dictionary index: {error}") from error
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def convert(column: pa.ChunkedArray, kind: pa.DataType, *, exact: bool = False) -> pa.ChunkedArray:
    """Return `column` as type `kind`. Nested fields are matched by name."""
    if column.type == kind:
        return column
    return pa.chunked_array([_convert(chunk, kind, exact) for chunk in column.chunks], kind)


def _convert(array: pa.Array, kind: pa.DataType, exact: bool) -> pa.Array:
    source = array.type
    if source == kind:
        return array
    if pa.types.is_dictionary(source):
        if pa.types.is_string_view(source.value_type):
            # Arrow cannot decode these; categories of Polars have them.
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.string()))
        return _convert(array.dictionary_decode(), kind, exact)
    if pa.types.is_struct(kind) and pa.types.is_struct(source):
        return _convert_struct(array, kind, exact)
    if pa.types.is_map(kind) and pa.types.is_map(source):
        offsets = rebased_offsets(array)
        return pa.MapArray.from_arrays(
            offsets,
            _convert(entries_of(array, array.keys), kind.key_type, exact),
            _convert(entries_of(array, array.items), kind.item_type, exact),
            kind,
        )
    if pa.types.is_list(kind) and (pa.types.is_list(source) or pa.types.is_large_list(source)):
        values = _convert(array.flatten(), kind.value_type, exact)
        return pa.ListArray.from_arrays(rebased_offsets(array), values, type=kind)
    if pa.types.is_string(kind) and pa.types.is_floating(source):
        return pc.cast(value_text(array, name=""), kind)
    if is_nanos(source) and kind in _MICROS:
        return to_micros(array, kind)
    # Long integers in files become the closest double, as in Spark. Other casts must be exact, except casts between
    # times.
    return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True, allow_float_truncate=not exact))


def _convert_struct(array: pa.StructArray, kind: pa.StructType, exact: bool) -> pa.StructArray:
    stored = {array.type.field(i).name: i for i in range(array.type.num_fields)}
    children = [
        _convert(pc.struct_field(array, [stored[field.name]]), field.type, exact)
        if field.name in stored
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))


def _chunks(total: int, size: int) -> Sequence[int]:
    return [min(size, total - start) for start in range(0, total, size)]
