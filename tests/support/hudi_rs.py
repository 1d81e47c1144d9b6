"""Reads through hudi-rs, the other implementation of the format that needs no JVM."""

from __future__ import annotations

import pyarrow as pa
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder


def read(location: str) -> pa.Table:
    """Return the newest snapshot."""
    return _read(location, HudiReadOptions())


def read_as_of(location: str, time: str) -> pa.Table:
    """Return the table as it was at the instant `time`."""
    return _read(location, HudiReadOptions().with_as_of_timestamp(time))


def read_incremental(location: str, start: str, end: str) -> pa.Table:
    """Return the rows that commits completed in (start, end] wrote (version 6: requested)."""
    options = HudiReadOptions().with_query_type(HudiQueryType.Incremental)
    return _read(location, options.with_start_timestamp(start).with_end_timestamp(end))


def like(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` with text columns cast where `schema` has another type.

    hudi-rs returns the source column of a timestamp partition as text, whatever the file holds.
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
