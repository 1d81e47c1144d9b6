"""Convert Python values to Arrow arrays exactly, or raise an error with the row, the column and the value.

`pyarrow.array` converts without a loop in Python, but it rounds and mixes some values silently: it cuts the fractions
of numbers and times off for narrower types, drops time zones and fields that a struct type lacks, and stores strings as
bytes beside bytes. Therefore each column is checked by the classes of its values first. All passes over rows run in C.

    kind given     each value must have a class of this type, and the type must represent it exactly
    kind is None   the type follows from the classes of all values; values of two kinds are an error
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import chain, compress, repeat
from operator import attrgetter, is_not, methodcaller
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MICROS, _NANOS = pa.timestamp("us"), pa.timestamp("ns")
_GROUPS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "bool"),
    ((int, np.integer), "int"),
    ((float, np.floating), "float"),
    (Decimal, "decimal"),
    (str, "string"),
    ((bytes, bytearray, memoryview), "binary"),
    (dt.datetime, "timestamp"),
    (dt.date, "date"),
    (dt.time, "time"),
    (Mapping, "struct"),
    ((list, tuple, set, frozenset, np.ndarray), "list"),
)
_HINTS = {
    "NaTType": "write None for a missing value",
    "NAType": "write None for a missing value",
    "datetime64": "write value.astype('datetime64[us]').item()",
    "UUID": "write str(value)",
    "timedelta": "write a number, such as value.total_seconds()",
}


class ValueMistake(ValueError):
    """A value that cannot be converted.

    Attributes:
        row: Position of the value in the converted values.
        path: Dotted name of its column; empty for the values themselves.
        reason: A sentence that contains the value.
    """

    def __init__(self, row: int, path: str, reason: str) -> None:
        super().__init__(f"row {row}: {path}: {reason}")
        self.row, self.path, self.reason = row, path, reason

    def inside(self, name: str, rows: Sequence[int] | np.ndarray) -> ValueMistake:
        """Return the mistake for the column that contains these values; `rows` are their rows in it."""
        path = f"{name}.{self.path}" if self.path else name
        return ValueMistake(int(rows[self.row]), path, self.reason)


def converted(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as an array of a type, or of the type that all values have.

    Raises:
        ValueMistake: A value does not have the type, or the type cannot represent it exactly.
    """
    classes = set(map(type, values)) - {type(None)}
    if not classes:
        return pa.nulls(len(values), kind or pa.null())
    groups = {_group(each) for each in classes}
    if None in groups or (kind is not None and not groups <= _accepted(kind)):
        _refuse_class(values, kind)
    if kind is None:
        return _inferred(values, groups)
    if pa.types.is_struct(kind):
        return _struct(values, kind)
    if pa.types.is_map(kind):
        return _map(values, kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(values, kind)
    if groups == {"timestamp"}:
        return _timestamps(values, classes, kind)
    if pa.types.is_floating(kind):
        numbers = _by_arrow(values, pa.float64())
        return numbers if kind == pa.float64() else _cast(values, numbers, kind)
    if pa.types.is_time(kind):
        return _cast(values, _by_arrow(values, pa.time64("us")), kind)
    return _by_arrow(values, kind)


def struct_fields(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the field names of all rows, each once, in the order of their first use."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def field_values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the value of a field in each row; None for a row without the field."""
    return list(map(methodcaller("get", name), rows))


def exact_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another type that represents each value exactly.

    Numbers, decimals and times are converted. A time without a zone is UTC in a column with a zone.

    Raises:
        pa.ArrowInvalid: A value has no exact representation, or there is no such conversion.
    """
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return exact_cast(array.dictionary_decode(), kind)
    if pa.types.is_floating(array.type) and pa.types.is_float32(kind):
        return _short_floats(array, kind)
    if pa.types.is_integer(array.type) and pa.types.is_decimal(kind):
        return pc.cast(pc.cast(array, pa.decimal128(38, 0)), kind)
    if pa.types.is_timestamp(array.type):
        if pa.types.is_date(kind) and array.type.tz is None:
            days = pc.cast(array, kind)
            if pc.any(pc.not_equal(pc.cast(days, array.type), array)).as_py():
                raise pa.ArrowInvalid("a time has a time of day, and the column contains dates")
            return days
        if pa.types.is_timestamp(kind) and array.type.tz is not None and kind.tz is None:
            raise pa.ArrowInvalid("a time has a zone, and the column has none")
    if not _is_convertible(array.type, kind):
        raise pa.ArrowInvalid(f"{array.type} is not {kind}")
    return pc.cast(array, kind)


def stored_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values that a statement writes, in the type of their column.

    Unlike `exact_cast`, texts are parsed, values become texts, and fractions may have fewer digits in a column of
    floating-point numbers.

    Raises:
        pa.ArrowInvalid: A value does not fit, or would have another meaning: a time without its time of day, a number
            that is no truth value, or days as a number.
        pa.ArrowNotImplementedError: There is no such conversion.
    """
    source = array.type
    if pa.types.is_floating(source) and pa.types.is_decimal(kind):
        return pc.cast(pc.cast(array, pa.string()), kind)
    if pa.types.is_timestamp(source) and pa.types.is_date(kind):
        return exact_cast(pc.cast(array, pa.timestamp(source.unit)), kind)
    if pa.types.is_integer(source) and pa.types.is_decimal(kind):
        return exact_cast(array, kind)
    if pa.types.is_temporal(source) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise pa.ArrowInvalid(f"{source} is not {kind}")
    result = pc.cast(array, kind)
    is_number = pa.types.is_integer(source) or pa.types.is_floating(source) or pa.types.is_decimal(source)
    if is_number and pa.types.is_boolean(kind):
        number = pc.cast(array, pa.float64(), safe=False)
        if not pc.all(pc.equal(number, pc.cast(pc.cast(result, pa.int8()), pa.float64()))).as_py():
            raise pa.ArrowInvalid("a number is neither 0 nor 1")
    if is_number and pa.types.is_floating(kind):
        number = pc.cast(array, pa.float64(), safe=False)
        if pc.any(pc.and_(pc.is_inf(result), pc.invert(pc.is_inf(number)))).as_py():
            raise pa.ArrowInvalid("a number is out of range")
    return result


def united_kinds(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the type of a column with values of two inferred types; None if they are of different kinds."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if {first, second} <= {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_decimal(first) and pa.types.is_decimal(second):
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else None
    if {first, second} & {pa.int64()} and (pa.types.is_decimal(first) or pa.types.is_decimal(second)):
        number = first if pa.types.is_decimal(first) else second
        digits = max(19, number.precision - number.scale) + number.scale
        return pa.decimal128(min(digits, 38), number.scale)
    if pa.types.is_list(first) and pa.types.is_list(second):
        inner = united_kinds(first.value_type, second.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        fields = united_fields(first, second)
        return None if fields is None else pa.struct(fields)
    return None


def united_fields(first: pa.StructType | pa.Schema, second: pa.StructType | pa.Schema) -> list[pa.Field] | None:
    """Return the fields of both, by name; None if a field has different kinds."""
    kinds = {field.name: field.type for field in first}
    for field in second:
        both = united_kinds(kinds.get(field.name, pa.null()), field.type)
        if both is None:
            return None
        kinds[field.name] = both
    return [pa.field(name, kind) for name, kind in kinds.items()]


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in a type that `united_kinds` returned for its type."""
    if array.type == kind:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind):
        children = {field.name: array.field(number) for number, field in enumerate(array.type)}
        parts = [fitted(children.get(f.name, pa.nulls(len(array))), f.type) for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        offsets = pa.array(array.offsets.to_numpy() - array.offsets[0].as_py(), mask=_open_ended(array))
        return pa.ListArray.from_arrays(offsets, fitted(array.flatten(), kind.value_type), type=kind)
    return exact_cast(array, kind)


def _open_ended(array: pa.ListArray) -> np.ndarray:
    """Return which rows are null, with one more entry for the last offset."""
    return np.append(np.asarray(array.is_null()), False)


def _group(kind: type) -> str | None:
    """Return the kind of the values of a class; None if they have no equivalent in a table."""
    if kind.__name__ in _HINTS:
        return None
    return next((name for classes, name in _GROUPS if issubclass(kind, classes)), None)


def _accepted(kind: pa.DataType) -> set[str]:
    """Return the kinds of values that a type can represent."""
    tests: tuple[tuple[Callable[[pa.DataType], bool], set[str]], ...] = (
        (pa.types.is_boolean, {"bool"}),
        (pa.types.is_integer, {"int"}),
        (pa.types.is_floating, {"int", "float"}),
        (pa.types.is_decimal, {"int", "decimal"}),
        (pa.types.is_string, {"string"}),
        (pa.types.is_large_string, {"string"}),
        (pa.types.is_binary, {"binary"}),
        (pa.types.is_large_binary, {"binary"}),
        (pa.types.is_fixed_size_binary, {"binary"}),
        (pa.types.is_date, {"date"}),
        (pa.types.is_timestamp, {"timestamp"}),
        (pa.types.is_time, {"time"}),
        (pa.types.is_map, {"struct", "list"}),
        (pa.types.is_struct, {"struct"}),
        (pa.types.is_list, {"list"}),
        (pa.types.is_large_list, {"list"}),
    )
    return next((groups for is_kind, groups in tests if is_kind(kind)), set())


def _refuse_class(values: Sequence[Any], kind: pa.DataType | None) -> NoReturn:
    """Raise ValueMistake for the first value whose class does not fit."""
    accepted = None if kind is None else _accepted(kind)
    for row, value in enumerate(values):
        group = None if value is None else _group(type(value))
        if value is not None and (group is None or (accepted is not None and group not in accepted)):
            hint = _HINTS.get(type(value).__name__, "")
            expected = "which a table cannot store" if kind is None else f"but the column is of type {kind}"
            raise ValueMistake(row, "", f"{_shown(value)} is of type {type(value).__name__}, {expected}{_tail(hint)}")
    raise AssertionError("a value has a class that does not fit")


def _inferred(values: Sequence[Any], groups: set[str | None]) -> pa.Array:
    """Return values as an array of the type that all of them have."""
    if groups == {"int", "float"}:
        return _by_arrow(values, pa.float64())
    if groups == {"int", "decimal"}:
        groups = {"decimal"}
    if len(groups) > 1:
        _refuse_mixed(values)
    group = next(iter(groups))
    if group == "struct":
        return _struct(values, None)
    if group == "list":
        return _list(values, None)
    if group == "timestamp":
        return _timestamps(values, set(map(type, values)) - {type(None)}, None)
    if group == "decimal":
        return _decimals(values)
    kinds = {
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "time": pa.time64("us"),
    }
    return _by_arrow(values, kinds[str(group)])


def _refuse_mixed(values: Sequence[Any]) -> NoReturn:
    first: tuple[int, Any] | None = None
    for row, value in enumerate(values):
        if value is None:
            continue
        if first is None:
            first = (row, value)
        elif {_group(type(value)), _group(type(first[1]))} not in ({_group(type(value))}, {"int", "float"}):
            raise ValueMistake(
                row,
                "",
                f"{_shown(value)} is of type {type(value).__name__}, but {_shown(first[1])} before it is of type "
                f"{type(first[1]).__name__}; give all values of a column one type",
            )
    raise AssertionError("two values have different kinds")


def _by_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of a checked class as an array; raise ValueMistake for the first that Arrow refuses."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        row = _first_failing(values, lambda part: pa.array(part, kind))
        raise ValueMistake(row, "", f"{_shown(values[row])} does not fit {_described(kind, error)}") from error


def _decimals(values: Sequence[Any]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        row = _first_failing(values, pa.array)
        raise ValueMistake(row, "", f"{_shown(values[row])} is not a decimal of at most 38 digits") from error
    if not pa.types.is_decimal128(array.type):
        raise ValueMistake(0, "", f"the decimals need the type {array.type}, which has more than 38 digits")
    return array


def _cast(values: Sequence[Any], array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array of `values` in a type that represents them exactly."""
    try:
        return exact_cast(array, kind)
    except pa.ArrowException as error:
        row = _first_failing(array, lambda part: exact_cast(part, kind))
        raise ValueMistake(row, "", f"{_shown(values[row])} does not fit {_described(kind, error)}") from error


def _timestamps(values: Sequence[Any], classes: set[type], kind: pa.DataType | None) -> pa.Array:
    """Return times as an array; a time without a zone is UTC in a column with a zone."""
    is_present = list(map(is_not, values, repeat(None)))
    present = list(compress(values, is_present))
    naive = [zone is None for zone in map(attrgetter("tzinfo"), present)]
    if not all(naive) and (kind.tz is None if kind is not None else any(naive)):
        row = naive.index(False) if kind is not None else naive.index(naive[0] is False)
        value = present[row]
        reason = (
            f"{_shown(value)} has a time zone, but the column has the type {kind}; write value.replace(tzinfo=None)"
            if kind is not None
            else f"{_shown(value)} is a time {'without' if naive[row] else 'with'} a zone, and other values of the "
            "column are not; give all of them a zone"
        )
        raise ValueMistake(int(np.flatnonzero(is_present)[row]), "", reason)
    # Times of pandas have nanoseconds.
    is_fine = any(hasattr(each, "nanosecond") for each in classes)
    stored = pa.timestamp("ns" if is_fine else "us", None if all(naive) else "UTC")
    wanted = pa.timestamp("us", stored.tz) if kind is None else kind
    return _cast(values, _by_arrow(values, stored), wanted)


def _short_floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return doubles as floats if the digits of each value stay the same, such as 0.1 and 2.5."""
    short = pc.cast(array, kind, safe=False)
    same = pc.or_kleene(pc.equal(pc.cast(short, array.type), array), pc.is_nan(array))
    others = pc.and_kleene(pc.invert(same), pc.is_valid(array))
    if pc.any(others).as_py():
        text, shorter = (pc.cast(part.filter(others), pa.string()) for part in (array, short))
        if not pc.all(pc.equal(text, shorter)).as_py():
            raise pa.ArrowInvalid("a number has more digits than the type")
    return short


def _is_convertible(source: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether Arrow converts values between these types without loss, or fails."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if any(is_kind(source) for is_kind in numbers) and any(is_kind(kind) for is_kind in numbers):
        return not (pa.types.is_floating(source) and pa.types.is_decimal(kind))
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    pairs = (
        texts,
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        (pa.types.is_timestamp,),
        (pa.types.is_time,),
        (pa.types.is_date,),
        (pa.types.is_null,),
    )
    return any(any(one(source) for one in same) and any(one(kind) for one in same) for same in pairs)


def _struct(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """Return mappings as an array of structs; fields that a struct lacks are null."""
    is_present = np.array(list(map(is_not, values, repeat(None))), dtype=bool)
    present = values if is_present.all() else list(compress(values, is_present))
    rows = np.flatnonzero(is_present)
    names = struct_fields(present)
    _check_fields(present, rows, names, kind)
    fields = list(kind) if kind is not None else [pa.field(name, pa.null()) for name in names]
    children = []
    for number, field in enumerate(fields):
        try:
            child = converted(field_values(present, field.name), None if kind is None else field.type)
        except ValueMistake as mistake:
            raise mistake.inside(field.name, rows) from None
        fields[number] = field.with_type(child.type)
        children.append(child)
    if len(present) < len(values):
        places = np.cumsum(is_present) - 1
        indices = pa.array(places, pa.int64(), mask=~is_present)
        children = [child.take(indices) for child in children]
    if not fields:
        raise ValueMistake(int(rows[0]), "", "{} has no fields; write None, or give it a field")
    fields = [field.with_nullable(True) for field in fields] if kind is None else fields
    return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(~is_present))


def _check_fields(present: Sequence[Any], rows: np.ndarray, names: list[Any], kind: pa.DataType | None) -> None:
    """Raise ValueMistake for the first field whose name is not a string, or that the type lacks."""
    allowed = None if kind is None else {field.name for field in kind}
    for name in names:
        if isinstance(name, str) and (allowed is None or name in allowed):
            continue
        row = next(number for number, value in enumerate(present) if name in value)
        where = "a field name must be a string" if not isinstance(name, str) else "the column has no such field"
        named = "" if kind is None else f"; its fields are {', '.join(sorted(allowed or ()))}"
        raise ValueMistake(
            int(rows[row]), "", f"field {name!r} with the value {_shown(present[row][name])}: {where}{named}"
        )


def _list(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    lengths, inner, rows = _flattened(values, list)
    try:
        child = converted(inner, None if kind is None else kind.value_type)
    except ValueMistake as mistake:
        raise mistake.inside("element", rows) from None
    offsets = _offsets(lengths)
    if kind is None:
        return pa.ListArray.from_arrays(offsets, child)
    made = pa.ListArray.from_arrays(offsets, child, type=pa.list_(kind.value_field))
    return made if made.type == kind else made.cast(kind)


def _map(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    lengths, entries, rows = _flattened(
        values, lambda value: list(value.items()) if isinstance(value, Mapping) else value
    )
    for row, entry in zip(rows, entries, strict=True):
        if not isinstance(entry, tuple | list) or len(entry) != 2 or entry[0] is None:
            raise ValueMistake(int(row), "", f"{_shown(entry)} is not a pair of a key and a value; give a dict")
    keys, items = (list(part) for part in zip(*entries, strict=True)) if entries else ([], [])
    children = []
    for name, part, inner in (("key", keys, kind.key_type), ("value", items, kind.item_type)):
        try:
            children.append(converted(part, inner))
        except ValueMistake as mistake:
            raise mistake.inside(name, rows) from None
    return pa.MapArray.from_arrays(_offsets(lengths), *children, type=kind)


def _flattened(
    values: Sequence[Any], entries: Callable[[Any], Sequence[Any]]
) -> tuple[np.ndarray, list[Any], np.ndarray]:
    """Return the length of each list (-1 for null), the elements of all lists, and the row of each element."""
    is_present = list(map(is_not, values, repeat(None)))
    lists = list(map(entries, compress(values, is_present)))
    lengths = np.full(len(values), -1, np.int64)
    lengths[np.array(is_present, dtype=bool)] = np.fromiter(map(len, lists), np.int64, len(lists))
    rows = np.repeat(np.arange(len(values)), np.maximum(lengths, 0))
    return lengths, list(chain.from_iterable(lists)), rows


def _offsets(lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))]).astype(np.int32)
    return pa.array(offsets, mask=np.append(lengths < 0, False))


def _first_failing(values: Any, attempt: Callable[[Any], Any]) -> int:
    """Return the position of the first value for which a conversion fails, by halving."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(values[low:middle])
            low = middle
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            high = middle
    return low


def _described(kind: pa.DataType, error: Exception) -> str:
    return f"the type {kind} exactly ({str(error).splitlines()[0]})"


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _tail(hint: str) -> str:
    return f"; {hint}" if hint else ""
