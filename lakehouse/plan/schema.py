"""How the schema of a table may change when a batch arrives (format: data.md 11).

batch \\ table   absent: added, nullable     wider: batch is cast up     narrower: table is promoted
missing column  null, or (partial updates) as stored, if the policy says so; else refused
anything else   refused, by name
"""

from __future__ import annotations

import pyarrow as pa

from lakehouse.errors import UserError, nearest
from lakehouse.format.avro_schema import META_COLUMNS
from lakehouse.spec.options import SchemaPolicy

_WIDENING = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]


def plan_schema(
    table: pa.Schema | None, batch: pa.Schema, policy: SchemaPolicy, *, required: tuple[str, ...] = ()
) -> pa.Schema:
    """Return the schema of the table's data columns after a write of `batch`; meta columns of the batch are ignored.

    Raises UserError naming the column for what is neither an addition nor a legal promotion, and for missing columns.
    """
    incoming = normalise(pa.schema([f for f in batch if f.name not in META_COLUMNS]))
    _check_names(incoming)
    for name in required:
        if name.split(".")[0] not in incoming.names:
            hint = nearest(name, incoming.names)
            raise UserError(
                f"column {name!r} is not in the data.{hint} Columns: {', '.join(incoming.names)}", column=name
            )
    if table is None:
        return pa.schema([f.with_nullable(True) for f in incoming])
    fields = []
    for field in table:
        if field.name in incoming.names:
            fields.append(field.with_type(_merge(field.name, field.type, incoming.field(field.name).type)))
        elif (policy.fill_missing_columns or policy.partial_update) and field.nullable:
            fields.append(field)
        else:
            raise UserError(
                f"column {field.name!r} of the table is not in the data.{nearest(field.name, incoming.names)} "
                "Add it, or set hoodie.write.set.null.for.missing.columns=true to write nulls, or "
                "lakehouse.write.partial.update=true to leave its values as they are.",
                column=field.name,
            )
    fields += [field.with_nullable(True) for field in incoming if field.name not in table.names]
    return pa.schema(fields)


def united(theirs: pa.Schema, ours: pa.Schema) -> pa.Schema:
    """Return the schema of a table that two writers changed at the same time: what the first left, then our columns.

    Raises UserError naming a column that both changed to types neither of which holds the other's values.
    """
    known = [
        field.with_type(_merge(field.name, field.type, ours.field(field.name).type))
        if field.name in ours.names
        else field
        for field in theirs
    ]
    both = pa.schema([*known, *(field for field in ours if field.name not in theirs.names)])
    _check_names(both)
    return both


def brought_columns(table: pa.Schema, batch: pa.Schema) -> tuple[str, ...] | None:
    """Return the columns of `table` that a batch brings, None if it brings all."""
    names = tuple(name for name in table.names if name in batch.names)
    return names if len(names) < len(table) else None


def normalise(schema: pa.Schema) -> pa.Schema:
    """Return the schema in the types Hudi stores: small ints widened, times in micros, nothing large or encoded."""
    return pa.schema([field.with_type(_stored(field.name, field.type)).remove_metadata() for field in schema])


def _check_names(schema: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise UserError(f"columns {seen[name.lower()]!r} and {name!r} differ in nothing but case; rename one")
        seen[name.lower()] = name


def _stored(name: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _stored(name, kind.value_type)
    if pa.types.is_int8(kind) or pa.types.is_int16(kind) or pa.types.is_uint8(kind) or pa.types.is_uint16(kind):
        return pa.int32()
    if pa.types.is_uint32(kind):
        return pa.int64()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _stored(name, kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        item = pa.field("value", _stored(name, kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _stored(name, kind.key_type), False), item)
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_stored(f"{name}.{f.name}", f.type)) for f in kind])
    if pa.types.is_null(kind):
        raise UserError(f"column {name!r} has no type: all its values are null; cast it to the type it should have")
    return kind


def _merge(name: str, table: pa.DataType, batch: pa.DataType) -> pa.DataType:
    if table == batch:
        return table
    if pa.types.is_struct(table) and pa.types.is_struct(batch):
        return _merge_struct(name, table, batch)
    if pa.types.is_list(table) and pa.types.is_list(batch):
        return pa.list_(_merge_field(f"{name}.element", table.value_field, batch.value_field))
    if pa.types.is_map(table) and pa.types.is_map(batch):
        if table.key_type != batch.key_type:
            raise _illegal(name, table, batch)
        return pa.map_(table.key_field, _merge_field(f"{name}.value", table.item_field, batch.item_field))
    if _fits(batch, table):
        return table
    if _fits(table, batch):
        return batch
    raise _illegal(name, table, batch)


def _merge_struct(name: str, table: pa.StructType, batch: pa.StructType) -> pa.StructType:
    incoming = {f.name: f for f in batch}
    fields = [
        _merge_field(f"{name}.{f.name}", f, incoming[f.name]) if f.name in incoming else f.with_nullable(True)
        for f in table
    ]
    known = {f.name for f in table}
    return pa.struct(fields + [f.with_nullable(True) for f in batch if f.name not in known])


def _merge_field(name: str, table: pa.Field, batch: pa.Field) -> pa.Field:
    # Inside of a column a value may become optional: engines differ in what they call it, and it costs nobody a row.
    return table.with_type(_merge(name, table.type, batch.type)).with_nullable(table.nullable or batch.nullable)


def _fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of `narrow` may be stored as `wide` by Hudi's promotions."""
    if narrow in _WIDENING and wide in _WIDENING:
        return _WIDENING.index(narrow) <= _WIDENING.index(wide)
    if pa.types.is_string(wide):
        return bool(narrow in _WIDENING or pa.types.is_date32(narrow) or pa.types.is_binary(narrow))
    if pa.types.is_binary(wide):
        return bool(pa.types.is_string(narrow))
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        digits: bool = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return digits and bool(wide.scale >= narrow.scale)
    return False


def _illegal(name: str, table: pa.DataType, batch: pa.DataType) -> UserError:
    return UserError(
        f"column {name!r} is {table} in the table and {batch} in the data; legal changes are int -> long -> float -> "
        "double -> string, date -> string, string <-> bytes and wider decimals. Cast the column.",
        column=name,
    )
