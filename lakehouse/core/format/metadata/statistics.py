"""Decode and encode statistics, the records of `column_stats` and `partition_stats` (MDT-4).

A table of statistics contains rows for many columns, whose bounds have different types. `bounds.py` explains how bounds
are stored together, and returns them typed for one column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from lakehouse.core.format.avro.nodes import AvroNode
from lakehouse.core.format.hfile.entries import ENTRIES, Entries
from lakehouse.core.format.metadata.bounds import (
    DATA,
    NULL_TYPE,
    NUMBERS,
    PARTS,
    REALS,
    bound_parts,
    has_statistics,
    typed_bounds,
    value_type,
    wrapper_of,
)
from lakehouse.core.format.metadata.records import (
    PARTITION_STATS,
    STATS,
    encoded_entries,
    payload,
    places_of,
    sorted_by_key,
)
from lakehouse.core.format.metadata.schema import COLUMN_STATS, SCHEMA, WRAPPERS, record_node
from lakehouse.core.format.spread import spread
from lakehouse.errors import CorruptTableError

#: Each row is the statistics of one column in one file or partition. `name` is the file name, or the partition path in
#: `partition_stats`. Sizes are sizes of the column; `tight`: the bounds are the bounds of the live rows.
#: `type_ordinal` and `type_info` are the value type of version V2, null in V1.
STAT_ROWS = pa.schema(
    [
        ("key", pa.string()),
        ("type", pa.int32()),
        ("name", pa.string()),
        ("column", pa.string()),
        *((f"{bound}_{field.name}", field.type) for bound in ("min", "max") for field in PARTS),
        ("value_count", pa.int64()),
        ("null_count", pa.int64()),
        ("size_bytes", pa.int64()),
        ("uncompressed_bytes", pa.int64()),
        ("deleted", pa.bool_()),
        ("tight", pa.bool_()),
        ("type_ordinal", pa.int32()),
        ("type_info", pa.string()),
    ]
)
_COUNTS = {
    "valueCount": "value_count",
    "nullCount": "null_count",
    "totalSize": "size_bytes",
    "totalUncompressedSize": "uncompressed_bytes",
}
_ARRAY_WRAPPER = len(WRAPPERS) + 1
#: Number of records that are decoded together.
_BATCH_ROWS = 16_384
#: The last bytes of a record without value type: deleted, tight, and three fields that are null.
_UNTYPED_ENDS = tuple(bytes((deleted, tight, 0, 0, 0)) for deleted in (0, 1) for tight in (0, 1))


def decode_statistics(entries: pa.Table, schema: str) -> pa.Table:
    """Return the records of `column_stats` or `partition_stats` as `STAT_ROWS`, in the order of the entries.

    Raises CorruptTableError if a record is malformed, of another kind, or names no column or file.
    """
    if entries.num_rows <= _BATCH_ROWS:
        return _decoded(entries, schema)
    # A decoded record has a field for each wrapper, so it takes several times the memory of its row.
    starts = range(0, entries.num_rows, _BATCH_ROWS)
    return pa.concat_tables([_decoded(entries.slice(start, _BATCH_ROWS), schema) for start in starts])


def _decoded(entries: pa.Table, schema: str) -> pa.Table:
    keys, values, kinds = payload(entries, schema, COLUMN_STATS, (STATS, PARTITION_STATS))
    count = len(keys)
    fields = {field.name: values.field(index) for index, field in enumerate(values.type)}
    columns: dict[str, Any] = {
        "key": keys, "type": kinds, "name": fields.get("fileName"), "column": fields.get("columnName"),
        "deleted": fields.get("isDeleted"), "tight": fields.get("isTightBound"),
    }  # fmt: skip
    columns |= {name: fields.get(stored) for stored, name in _COUNTS.items()}
    for bound in ("min", "max"):
        columns |= {f"{bound}_{part}": array for part, array in _parts(fields.get(f"{bound}Value"), count).items()}
    info = fields.get("valueType")
    if info is not None:
        names = [field.name for field in info.type]
        columns["type_ordinal"] = info.flatten()[names.index("typeOrdinal")]
        columns["type_info"] = info.flatten()[names.index("additionalInfo")]
    for name in ("name", "column"):
        if columns[name] is None or columns[name].null_count:
            at = 0 if columns[name] is None else int(np.flatnonzero(np.asarray(columns[name].is_null()))[0])
            if count:
                raise CorruptTableError(f"the statistics of key {keys[at].as_py()!r} have no {name}")
    for name in ("deleted", "tight"):
        columns[name] = pa.array(np.zeros(count, np.bool_)) if columns[name] is None else columns[name]
    return pa.table([_or_nulls(columns.get(field.name), count, field.type) for field in STAT_ROWS], schema=STAT_ROWS)


def decode_statistics_parts(parts: Sequence[pa.Table], schema: str) -> list[pa.Table]:
    """Return the records in several tables of entries, with one call of the decoder."""
    rows = decode_statistics(pa.concat_tables(parts), schema)
    return [rows.slice(*place) for place in places_of(parts)]


def encode_statistics(rows: pa.Table, schema: str = SCHEMA) -> pa.Table:
    """Return `STAT_ROWS` as entries. Keys are distinct; the order of the rows does not matter.

    Raises CorruptTableError if rows have value types and the Avro schema of the records cannot store them.
    """
    if not rows.num_rows:
        return ENTRIES.empty_table()
    rows = sorted_by_key(rows).combine_chunks()
    (node,) = [child for child in record_node(schema).children if child.path == COLUMN_STATS]
    nodes = dict(zip((field.name for field in node.arrow), node.children, strict=True))
    column = {name: _one(rows.column(name)) for name in rows.column_names}
    fields: dict[str, Any] = {
        "fileName": column["name"], "columnName": column["column"],
        "isDeleted": column["deleted"], "isTightBound": column["tight"],
    }  # fmt: skip
    fields |= {stored: column[name] for stored, name in _COUNTS.items()}
    for bound in ("min", "max"):
        parts = {field.name: column[f"{bound}_{field.name}"] for field in PARTS}
        fields[f"{bound}Value"] = _union(parts, nodes[f"{bound}Value"])
    if "valueType" in nodes:
        fields["valueType"] = pa.StructArray.from_arrays(
            [column["type_ordinal"].fill_null(0), column["type_info"]],
            fields=list(nodes["valueType"].arrow),
            mask=column["type_ordinal"].is_null(),
        )
    elif column["type_ordinal"].null_count < rows.num_rows:
        raise CorruptTableError(
            f"the statistics of {column['name'][0].as_py()!r} have value types, which the metadata records of a table "
            "of version 8 cannot store. Rebuild the metadata table with `lakehouse metadata rebuild`"
        )
    values = pa.StructArray.from_arrays([fields[field.name] for field in node.arrow], fields=list(node.arrow))
    return encoded_entries(column["key"], np.asarray(column["type"]), COLUMN_STATS, values, schema)


def without_value_types(entries: Entries) -> Entries | None:
    """Convert encoded records of version V1 from `SCHEMA` to the schema of Hudi 1.0, which has no value types.

    The records differ in one byte, the null of the value type. Returns None if a record has a value type.
    """
    if not isinstance(entries, pa.Table):
        untyped = all(value.endswith(_UNTYPED_ENDS) for value in entries.values())
        return {key: value[:-1] for key, value in entries.items()} if untyped else None
    values = _one(entries.column("value"))
    ends = pc.is_in(pc.binary_slice(values, -len(_UNTYPED_ENDS[0])), pa.array(_UNTYPED_ENDS))
    if not pc.all(ends, min_count=0).as_py():
        return None
    return pa.table([entries.column("key"), pc.binary_slice(values, 0, -1)], schema=ENTRIES)


def with_value_type(value: bytes) -> bytes:
    """Convert an encoded record from the schema of Hudi 1.0 to `SCHEMA`: its value type is null."""
    return value + b"\0"


# parameters: the columns of a statistics table
def statistics_of(
    values: pa.Table, column: str | pa.Array, keys: pa.Array, *, version: str, partition_stats: bool = False
) -> pa.Table:
    """Return statistics of one column, or of several columns with equal types, as `STAT_ROWS`.

    Args:
        values: One row per column and file or partition, with the columns `name`, `min` and `max` (with the column's
            type), `value_count`, `null_count`, `size_bytes`, `uncompressed_bytes` and `tight`.
        column: The dotted path of the column, or an array with the path for each row.
        keys: The record keys.
        version: The version of the index definition, "V1" or "V2".
        partition_stats: Whether these are statistics of partitions.
    """
    values, count = values.combine_chunks(), values.num_rows
    minima, maxima = _one(values.column("min")), _one(values.column("max"))
    parts = {"min": bound_parts(minima, version), "max": bound_parts(maxima, version)}
    columns: dict[str, Any] = {name: values.column(name) for name in ("name", "tight", *_COUNTS.values())}
    columns |= {f"{bound}_{name}": table.column(name) for bound, table in parts.items() for name in PARTS.names}
    columns["key"] = keys
    columns["type"] = pa.array(np.full(count, PARTITION_STATS if partition_stats else STATS, np.int32))
    columns["column"] = pa.repeat(pa.scalar(column), count) if isinstance(column, str) else column
    columns["deleted"] = pa.array(np.zeros(count, np.bool_))
    if version == "V2":
        ordinal, info = value_type(minima.type) or (NULL_TYPE, None)
        is_typed = np.asarray(minima.is_valid()) | np.asarray(maxima.is_valid())
        if partition_stats:
            # Hudi cannot merge rows of different types, and rows that are not tight are merged.
            is_typed |= ~np.asarray(values.column("tight"))
        columns["type_ordinal"] = pa.array(np.where(is_typed, ordinal, NULL_TYPE).astype(np.int32))
        columns["type_info"] = pc.if_else(pa.array(is_typed), pa.scalar(info, pa.string()), None)
    return pa.table([_or_nulls(columns.get(field.name), count, field.type) for field in STAT_ROWS], schema=STAT_ROWS)


def typed_statistics(rows: pa.Table, kind: pa.DataType) -> pa.Table:
    """Return statistics of one column with typed bounds.

    Args:
        rows: `STAT_ROWS` of one column.
        kind: The type of the column in the table.

    Returns:
        One row per file or partition: `name`, `min`, `max` (of type `kind`), `null_count`, `value_count`, and
        `known`, which is false if the row does not permit a conclusion about the values (MDT-14). With `known` and
        null bounds, all values are null.
    """
    infos, ordinals = _one(rows.column("type_info")), _one(rows.column("type_ordinal"))
    minima, maxima = (
        typed_bounds(
            {name: _one(rows.column(f"{bound}_{name}")) for name in PARTS.names},
            infos,
            kind,
            ordinals=ordinals,
            upper=bound == "max",
        )
        for bound in ("min", "max")
    )
    nulls, values = _one(rows.column("null_count")), _one(rows.column("value_count"))
    is_known = pc.and_(minima.is_valid(), maxima.is_valid())
    if pat.is_floating(kind):
        is_known = pc.and_(is_known, pc.invert(_is_suspicious(minima, maxima)))
    if not (pat.is_string(kind) or pat.is_large_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind)):
        # Hudi also stores null bounds for long strings whose bounds the Parquet footer omits.
        is_unbounded = pc.and_(pc.equal(rows.column("min_wrapper"), 0), pc.equal(rows.column("max_wrapper"), 0))
        all_null = pc.and_(_one(is_unbounded), pc.equal(nulls, values).fill_null(False))
        is_known = pc.or_(is_known, all_null)
    names = ["name", "min", "max", "null_count", "value_count", "known"]
    return pa.table([_one(rows.column("name")), minima, maxima, nulls, values, is_known], names=names)


def retyped_statistics(rows: pa.Table, kinds: Mapping[str, pa.DataType], version: str) -> pa.Table:
    """Convert the bounds of statistics to the current types of the columns.

    Bounds that cannot be converted are omitted. A row with values but without bounds counts as unknown.

    Args:
        rows: `STAT_ROWS` of several columns.
        kinds: Types by column. Rows of other columns are not changed.
        version: The version of the index definition, "V1" or "V2".
    """
    tables = []
    for column in pc.unique(rows.column("column")).to_pylist():
        of_column, kind = rows.filter(pc.equal(rows.column("column"), column)), kinds.get(column)
        is_typed = kind is not None and has_statistics(kind, version)
        tables.append(_retyped(of_column.combine_chunks(), kind, version) if is_typed else of_column)
    return pa.concat_tables(tables) if tables else rows


def _retyped(rows: pa.Table, kind: pa.DataType, version: str) -> pa.Table:
    ordinal, info = value_type(kind) or (NULL_TYPE, None)
    bounded = pc.or_(*(pc.not_equal(rows.column(f"{bound}_wrapper"), 0) for bound in ("min", "max")))
    wrapper = wrapper_of(kind, version)
    is_other = pc.or_(*(pc.not_equal(rows.column(f"{bound}_wrapper"), wrapper) for bound in ("min", "max")))
    if version == "V2":
        same = pc.and_(
            pc.equal(rows.column("type_ordinal"), ordinal).fill_null(False),
            pc.equal(rows.column("type_info").fill_null(""), info or ""),
        )
        is_other = pc.or_(is_other, pc.invert(same))
    if not pc.any(pc.and_(bounded, is_other)).as_py():
        return rows
    typed = typed_statistics(rows, kind)
    for bound in ("min", "max"):
        parts = bound_parts(_one(typed.column(bound)), version)
        for name in PARTS.names:
            position = rows.schema.get_field_index(f"{bound}_{name}")
            rows = rows.set_column(position, rows.schema.field(position), parts.column(name))
    if version == "V2":
        for name, value in (("type_ordinal", ordinal), ("type_info", info)):
            position = rows.schema.get_field_index(name)
            field = rows.schema.field(position)
            chosen = pc.if_else(bounded, pa.scalar(value, field.type), rows.column(name))
            rows = rows.set_column(position, field, chosen)
    return rows


def _is_suspicious(minima: pa.Array, maxima: pa.Array) -> pa.Array:
    """Return the mask of rows whose float bounds may be wrong:

    NaN, or 0 for both, which Hudi stores for files with NaN.
    """
    zero = pc.and_(pc.equal(minima, 0.0), pc.equal(maxima, 0.0))
    return pc.or_(zero, pc.or_(pc.is_nan(minima), pc.is_nan(maxima))).fill_null(False)


def _parts(union: Any, count: int) -> dict[str, pa.Array]:
    """Return decoded bounds as the columns of `PARTS`."""
    wrappers = np.zeros(count, np.int8)
    arrays: dict[str, Any] = {name: None for name in PARTS.names[1:]}
    if union is not None and not pat.is_struct(union.type):
        raise CorruptTableError(f"the schema of the metadata records declares bounds of type {union.type}")
    for index, field in enumerate(union.type if union is not None else ()):
        values = union.field(index)
        if values.null_count == count:
            continue
        wrapper = WRAPPERS.index(field.name) + 1 if field.name in WRAPPERS else _ARRAY_WRAPPER
        wrappers[np.asarray(values.is_valid())] = wrapper
        part = "number" if wrapper in NUMBERS else "real" if wrapper in REALS else "data"
        if wrapper == _ARRAY_WRAPPER:
            continue  # Bounds of arrays are not used.
        stored = values.flatten()[0]
        stored = stored.cast(pa.int8()) if pat.is_boolean(stored.type) else stored
        stored = stored.cast(PARTS.field(part).type)
        arrays[part] = stored if arrays[part] is None else pc.coalesce(arrays[part], stored)
    return {"wrapper": pa.array(wrappers)} | {
        name: _or_nulls(array, count, PARTS.field(name).type) for name, array in arrays.items()
    }


def _union(parts: dict[str, pa.Array], node: AvroNode) -> pa.Array:
    """Return bounds as an array of the wrapper union type."""
    wrappers = np.asarray(parts["wrapper"])
    fields = []
    for index, child in enumerate(node.children):
        has_value = wrappers == index + 1
        if index >= len(WRAPPERS) or not has_value.any():
            fields.append(pa.nulls(len(wrappers), child.arrow))
            continue
        part = "number" if index + 1 in NUMBERS else "real" if index + 1 in REALS else "data"
        (leaf,) = child.arrow
        present = parts[part].filter(pa.array(has_value))
        if index + 1 in DATA or index + 1 in REALS or not pat.is_boolean(leaf.type):
            present = present.cast(leaf.type)
        else:
            present = present.cast(pa.bool_())
        fields.append(spread(pa.StructArray.from_arrays([present], fields=[leaf]), has_value, nullable=True))
    return pa.StructArray.from_arrays(fields, fields=list(node.arrow))


def _or_nulls(column: Any, count: int, kind: pa.DataType) -> Any:
    return pa.nulls(count, kind) if column is None else column


def _one(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
