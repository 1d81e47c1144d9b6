"""Handle record fields without a column: they become columns, are reported, or end the run."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakehouse.core.rows.record_merge import ROW_MARKS
from lakehouse.errors import UserError
from lakehouse.model.drift import BatchColumns, ColumnDrift, Drift
from lakehouse.platform.sources.source import SCHEMA, KnownColumns
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.platform.sources.unread_fields import OTHERS, UnreadField, with_fields
from lakehouse.spark.columns import new_fields
from lakehouse.spark.sources import (
    Schema,
    column_of,
    declared_schema,
    schema_from_json,
    schema_of,
    schema_of_arrow,
    to_arrow,
)
from lakehouse.spec.options.schema import NEW_COLUMN
from lakehouse.spec.table.table_spec import TableSpec

#: Names of columns that the platform adds to records.
_OWN = ("_hoodie_", "_kafka_", "_lakehouse_")


def value_columns(spec: TableSpec, known_columns: KnownColumns) -> Schema:
    """Return the columns to read from records: the columns in the spec and columns that earlier runs added.

    Rows that are stored unchanged have the table's columns. With `select` or a transform the table has other columns;
    the newest commit then records the columns that were read.
    """
    declared = declared_schema({name: kind for name, kind in spec.schema.items() if not name.startswith(_OWN)})
    section = ingest_of(spec)
    if section.select or section.transform is not None:
        text = known_columns.previous.get(SCHEMA)
        earlier = schema_from_json(text) if text is not None else ()
    else:
        earlier = known_columns.table or ()
    names = {name.lower() for name in declared.names}
    more = [one for one in earlier if one.name.lower() not in names and not one.name.startswith(_OWN)]
    types = {one.name: one.dataType for one in earlier}
    # A declared column may have new nested fields.
    columns = [
        column_of(declared, one.name, new_fields(one.dataType, types.get(one.name, one.dataType), one.name)[0])
        for one in declared
    ]
    return schema_of([*columns, *more])


def role_columns(spec: TableSpec) -> frozenset[str]:
    """Return the columns that affect the table: delete marks, and columns in the spec.

    They are read even if other new columns are ignored: without its mark, for example, a delete would become a row.
    """
    section = ingest_of(spec)
    window = section.deduplicate
    named = (
        *spec.record_key,
        *spec.ordering,
        *spec.column_groups,
        *(column.name for column in spec.partition_by),
        spec.delete_field or "",
        section.event_time or "",
        *(() if window is None else (*window.keys, window.time)),
    )
    return ROW_MARKS | {name.partition(".")[0] for name in named if name}


def with_new_columns(
    schema: Schema,
    fields: Sequence[UnreadField],
    spec: TableSpec,
    known_columns: KnownColumns,
    *,
    has_types: bool = True,
) -> Schema:
    """Return the columns with a column per new field, or the same columns if new fields are only reported.

    Args:
        schema: The columns that were read.
        fields: The fields that were not read.
        spec: The spec of the table.
        known: The rule for new columns.
        has_types: Whether the field types are inferred from values.

    Raises:
        UserError: The rule is to fail, or a new column differs from another column only in case.
    """
    rule = known_columns.policy.new_column
    if not fields:
        return schema
    if rule == "fail":
        one = fields[0]
        raise UserError(
            f"field {one.name!r} of {one.records} records, such as {one.example}, is not among the columns of table "
            f"{spec.table}; nothing was written. Add it to 'schema', or set new_column in 'ingest' ({NEW_COLUMN}) to "
            "add it, or to ignore it",
            column=one.name,
        )
    select = ingest_of(spec).select
    if not has_types or (select and not any(text.strip().startswith("*") for text in select)):
        return schema
    roles = role_columns(spec)
    added = [one for one in fields if rule == "add" or one.path[0] in roles]
    typed = [one for one in added if one.path != OTHERS and str(one.type) != "null"]
    if not typed:
        return schema
    _check_case(typed, schema, spec)
    target = with_fields(pa.struct(list(to_arrow(schema))), typed)
    return schema_of_arrow(pa.schema(list(target)))


def unread_drift(fields: Sequence[UnreadField], rows: int) -> BatchColumns | None:
    """Return fields that were not read as column drift of a batch; None if there are none."""
    if not fields:
        return None
    drift = [ColumnDrift(column=f.name, change=Drift.IGNORED, rows=f.records, example=f.example) for f in fields]
    return BatchColumns(rows=rows, drift=tuple(drift))


def _check_case(fields: Sequence[UnreadField], schema: Schema, spec: TableSpec) -> None:
    """Raise UserError for a new column that differs from another column only in case: a table cannot have both."""
    seen = {name.lower(): name for name in schema.names}
    for one in fields:
        other = seen.setdefault(one.name.lower(), one.name)
        if other != one.name:
            raise UserError(
                f"field {one.name!r} of {one.records} records, such as {one.example}, differs from {other!r} only in "
                f"case, and table {spec.table} cannot have both. Rename it, or set new_column: ignore in 'ingest'",
                column=one.name,
            )
