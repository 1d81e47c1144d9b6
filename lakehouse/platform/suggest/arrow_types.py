"""The Spark SQL types for Arrow types, as in ingestions of files that declare their types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.platform.suggest.json_types import quoted

_NAMES: Mapping[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


def sql_type(kind: pa.DataType, *, has_local_times: bool) -> str | None:
    """Return the Spark SQL type for an Arrow type; None if Spark does not support it.

    Args:
        kind: The type.
        has_local_times: Whether times without a zone are local times; otherwise they are instants.
    """
    if kind in _NAMES:
        return _NAMES[kind]
    if pat.is_dictionary(kind):
        return sql_type(kind.value_type, has_local_times=has_local_times)
    if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind):
        return "string"
    if pat.is_fixed_size_binary(kind) or pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_binary_view(kind):
        return "binary"
    if pat.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None and has_local_times else "timestamp"
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _nested(kind, has_local_times=has_local_times)


def _nested(kind: pa.DataType, *, has_local_times: bool) -> str | None:
    if pat.is_list(kind) or pat.is_large_list(kind):
        element = sql_type(kind.value_type, has_local_times=has_local_times)
        return element and f"array<{element}>"
    if pat.is_map(kind):
        key, item = (sql_type(part, has_local_times=has_local_times) for part in (kind.key_type, kind.item_type))
        return f"map<{key},{item}>" if key and item else None
    if pat.is_struct(kind):
        inner = [(part.name, sql_type(part.type, has_local_times=has_local_times)) for part in kind]
        return (
            f"struct<{','.join(f'{quoted(name)}:{text}' for name, text in inner)}>"
            if all(dict(inner).values())
            else None
        )
    return None
