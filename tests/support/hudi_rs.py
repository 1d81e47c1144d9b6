"""Read tables with hudi-rs, an implementation of the format in Rust that needs no JVM."""

from __future__ import annotations

import pyarrow as pa
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder


def read(location: str) -> pa.Table:
    """Return the latest snapshot."""
    return _read(location, HudiReadOptions())


def read_optimized(location: str) -> pa.Table:
    """Return the rows of the base files."""
    return _read(location, HudiReadOptions().with_hudi_option("hoodie.read.use.read_optimized.mode", "true"))


def read_as_of(location: str, time: str) -> pa.Table:
    """Return the snapshot as of the instant `time`."""
    return _read(location, HudiReadOptions().with_as_of_timestamp(time))


def read_incremental(location: str, start: str, end: str) -> pa.Table:
    """Return the rows written by the commits with a completion time in (start, end].

    For tables of version 6 the requested time counts.
    """
    options = HudiReadOptions().with_query_type(HudiQueryType.Incremental)
    return _read(location, options.with_start_timestamp(start).with_end_timestamp(end))


def like(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` with string columns cast to the types of `schema`.

    hudi-rs returns the source column of a timestamp partition as string, whatever its type in the file is.
    """
    for position, field in enumerate(rows.schema):
        wanted = schema.field(field.name).type
        if pa.types.is_string(field.type) and wanted != field.type:
            rows = rows.set_column(position, field.name, rows.column(position).cast(wanted))
    return rows


def _read(location: str, options: HudiReadOptions) -> pa.Table:
    table = HudiTableBuilder.from_base_uri(location).build()
    batches = table.read(options)
    schema = table.get_schema_with_meta_fields()
    return pa.Table.from_batches([pa.record_batch(batch) for batch in batches]) if batches else schema.empty_table()
