"""Reads files whose columns have declared types: Parquet, ORC and Avro; it runs in Spark workers too.

Types that Spark lacks are converted as Spark's readers do: times of day become numbers in the file's unit, times in
nanoseconds become microseconds, and fixed-size bytes become bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from lakehouse.core.files.base.base_reader import convert
from lakehouse.core.format.avro.conform import conformed, named_types
from lakehouse.core.format.avro.container import AvroContainer
from lakehouse.core.storage.protocol import InputFile, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.document import parse_json

_BATCH_ROWS = 65_536
_COUNTS = {pa.time32("s"): pa.int32(), pa.time32("ms"): pa.int32(), pa.time64("us"): pa.int64()}


def typed_schema(storage: Storage, path: str, format: str) -> pa.Schema:
    """Return the columns of a file in types that Spark has; raise UserError for a file that cannot be read."""
    with _opened(storage, path, format) as file:
        if format == "avro":
            schema = AvroContainer(file).columns
        elif format == "orc":
            schema = orc.ORCFile(file).schema
        else:
            return pq.read_schema(file)
        return pa.schema([pa.field(column.name, _readable(column)) for column in schema])


def typed_batches(storage: Storage, path: str, format: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `typed_schema`; raise UserError for a file that cannot be read."""
    with _opened(storage, path, format) as file:
        if format == "parquet":
            yield from pq.ParquetFile(file).iter_batches()
        elif format == "orc":
            stored = orc.ORCFile(file)
            for number in range(stored.nstripes):
                yield from _readable_batches(pa.table(stored.read_stripe(number)))
        else:
            for rows in AvroContainer(file).batches():
                yield from _readable_batches(rows)


def event_batches(storage: Storage, path: str, target: pa.StructType) -> Iterator[pa.StructArray]:
    """Yield the records of an Avro file as values of `target`, by the names of their fields."""
    with _opened(storage, path, "avro") as file:
        container = AvroContainer(file)
        declared = parse_json(container.schema)
        named = dict(named_types(declared))
        for rows in container.batches():
            for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
                yield conformed(batch.to_struct_array(), target, declared, named)


def avro_columns(storage: Storage, path: str) -> pa.StructType:
    """Return the columns of an Avro file in its own types."""
    with _opened(storage, path, "avro") as file:
        return pa.struct(list(AvroContainer(file).columns))


def avro_records(storage: Storage, path: str) -> Iterator[pa.StructArray]:
    """Yield the records of an Avro file in its own types."""
    with _opened(storage, path, "avro") as file:
        for rows in AvroContainer(file).batches():
            yield from (batch.to_struct_array() for batch in rows.to_batches())


def _readable_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    columns = []
    for column in rows.schema:
        kind, values = _readable(column), rows.column(column.name)
        columns.append(convert(values, kind))
    yield from pa.table(columns, names=rows.column_names).to_batches(max_chunksize=_BATCH_ROWS)


@contextmanager
def _opened(storage: Storage, path: str, format: str) -> Iterator[InputFile]:
    url = f"{storage.root}/{path}"
    try:
        with storage.open_input(path) as file:
            yield file
    except UnsupportedError as error:
        raise UserError(f"{url} cannot be read: {error.message}", path=url) from error
    except (CorruptTableError, pa.ArrowException, OSError) as error:
        raise UserError(f"{url} cannot be read as {format}: {error}", path=url) from error


def _readable(column: pa.Field) -> pa.DataType:
    """Return the type in which Spark gets the values of a column."""
    kind = column.type
    if kind in _COUNTS:
        return _COUNTS[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _readable(one)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _readable(kind.value_field)))
    if pa.types.is_map(kind):
        return pa.map_(_readable(kind.key_field), pa.field("value", _readable(kind.item_field)))
    if pa.types.is_union(kind):
        raise UnsupportedError(f"column {column.name!r} is a union of several types", column=column.name)
    return kind
