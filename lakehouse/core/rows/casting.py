"""Cast columns of tables, and give null structs the content that Arrow's writers require.

A batch may lack a column whose type is a struct with required fields. Its rows are null, and so are the fields of a
null struct. Two parts of Arrow refuse such a value, although readers never see the fields of a null struct: `cast`,
even to the type that the column has already (apache/arrow#37072), and the Parquet writer.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UserError


def cast_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows`, which have the columns of `schema` in the same order, in the types of `schema`."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def writable(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the result of `cast_columns` in a form that the Parquet writer accepts.

    Required fields of null structs get an empty value. Raises UserError for a required field that is null in a struct
    that is not null.
    """
    cast = cast_columns(rows, schema)
    for position, field in enumerate(schema):
        if has_required(field.type):
            column = cast.column(position)
            filled = [fill_required(chunk, field.name) for chunk in column.chunks]
            cast = cast.set_column(position, field, pa.chunked_array(filled, field.type))
    return cast


def has_required(kind: pa.DataType) -> bool:
    """Return whether a type contains a struct with a required field."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or has_required(field.type) for field in kind)
    if pa.types.is_map(kind):
        return has_required(kind.item_type)
    return pa.types.is_list(kind) and has_required(kind.value_type)


def fill_required(array: pa.Array, name: str) -> pa.Array:
    """Return an array of the column `name` in which required fields of null structs have an empty value.

    Raises UserError for a required field that is null in a struct that is not null.
    """
    kind = array.type
    if not has_required(kind):
        return array
    if pa.types.is_struct(kind):
        return _filled_struct(array, name)
    if pa.types.is_map(kind):
        items = entries_of(array, array.items)
        filled = fill_required(items, f"{name}.value")
        keys = entries_of(array, array.keys)
        return array if filled is items else pa.MapArray.from_arrays(rebased_offsets(array), keys, filled, kind)
    values = array.flatten()
    filled = fill_required(values, f"{name}.element")
    return array if filled is values else pa.ListArray.from_arrays(rebased_offsets(array), filled, type=kind)


def entries_of(array: pa.MapArray, values: pa.Array) -> pa.Array:
    """Return the keys or items that belong to a map array; a sliced array contains the whole map's."""
    offsets = array.offsets
    start, stop = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    return values.slice(start, stop - start)


def rebased_offsets(array: pa.ListArray | pa.MapArray) -> pa.Array:
    """Return offsets that begin at zero, and are null if the row is null."""
    lengths = (
        pc.subtract(array.offsets[1:], array.offsets[:-1])
        if pa.types.is_map(array.type)
        else pc.list_value_length(array)
    )
    sizes = pc.fill_null(pc.cast(lengths, pa.int32()), 0)
    offsets = np.concatenate([[0], np.cumsum(sizes.to_numpy(zero_copy_only=False))]).astype(np.int32)
    nulls = np.append(np.asarray(pc.is_null(array)), False)
    return pa.array(offsets, mask=nulls) if nulls.any() else pa.array(offsets)


def _filled_struct(array: pa.StructArray, name: str) -> pa.StructArray:
    fields = list(array.type)
    children = [array.field(number) for number in range(len(fields))]
    filled = [
        fill_required(_with_value(array, child, field, f"{name}.{field.name}"), f"{name}.{field.name}")
        for child, field in zip(children, fields, strict=True)
    ]
    if all(new is old for new, old in zip(filled, children, strict=True)):
        return array
    return pa.StructArray.from_arrays(filled, fields=fields, mask=array.is_null())


def _with_value(parent: pa.StructArray, child: pa.Array, field: pa.Field, name: str) -> pa.Array:
    """Return the values of a child of `parent`, where a required field of a null struct has an empty value."""
    if field.nullable or not child.null_count:
        return child
    missing = pc.and_(child.is_null(), parent.is_valid())
    if pc.any(missing).as_py():
        raise UserError(
            f"column {name!r} must not be null, but {pc.sum(missing).as_py()} of {len(child)} values are: its struct "
            "requires the field. Fill it, or declare the field as nullable",
            column=name,
        )
    # A builder gives required fields of a null struct the empty value of their type.
    empty = pa.array([None], pa.struct([field])).field(0)
    places = np.where(np.asarray(child.is_null()), len(child), np.arange(len(child)))
    return pa.concat_arrays([child, empty]).take(pa.array(places))
