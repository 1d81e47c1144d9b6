"""Select the columns of Avro records by name, and convert them to declared types.

Debezium's types, which the schema declares as `connect.name`, are numbers. They are converted to dates and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.nanoseconds import is_nanos, to_micros

#: Types of Kafka Connect whose values are numbers, with the Arrow type of the number's meaning.
_CONNECT_TYPES = {
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("ns"),
}


def conformed(array: pa.Array, target: pa.DataType, declared: Any, named: Mapping[str, Any]) -> pa.Array:
    """Convert an array to the type `target`. Fields of structs are matched by name; missing fields are null.

    `declared` is the Avro type of the array, which states types of Kafka Connect; `named` has the named types.
    """
    declared = _without_null(declared)
    if isinstance(declared, str) and (declared in named or declared.rpartition(".")[2] in named):
        declared = named.get(declared) or named[declared.rpartition(".")[2]]
    if pa.types.is_struct(target) and pa.types.is_struct(array.type):
        types = {one["name"]: one["type"] for one in declared["fields"]}
        children = [
            conformed(_child(array, column.name), column.type, types[column.name], named)
            if array.type.get_field_index(column.name) >= 0
            else pa.nulls(len(array), column.type)
            for column in target
        ]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    name = declared.get("connect.name") if isinstance(declared, dict) else None
    meaning = _CONNECT_TYPES.get(str(name))
    if meaning is not None and pa.types.is_integer(array.type) and pa.types.is_temporal(target):
        width = pa.int32() if meaning == pa.date32() else pa.int64()
        array = array.cast(width).cast(meaning)
        if is_nanos(meaning) and pa.types.is_timestamp(target):
            return to_micros(array, pa.timestamp("us", target.tz)).cast(target, safe=False)
    return array if array.type == target else array.cast(target)


def named_types(declared: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named types in a type, by their names with and without namespace."""
    if isinstance(declared, list):
        for one in declared:
            yield from named_types(one)
    elif isinstance(declared, dict):
        if "name" in declared and declared.get("type") in ("record", "enum", "fixed"):
            yield declared["name"].rpartition(".")[2], declared
            yield f"{declared.get('namespace', '')}.{declared['name']}".lstrip("."), declared
        for one in declared.get("fields", ()):
            yield from named_types(one["type"])
        for part in ("items", "values"):
            yield from named_types(declared.get(part))
        if isinstance(declared.get("type"), list | dict):
            yield from named_types(declared["type"])


def _child(array: pa.StructArray, name: str) -> pa.Array:
    """Return the field of a struct, null where the struct is null."""
    return pc.struct_field(array, [name])


def _without_null(declared: Any) -> Any:
    """Return the other type of a union with null; return other types unchanged."""
    if isinstance(declared, list):
        return next((one for one in declared if one != "null"), "null")
    return declared
