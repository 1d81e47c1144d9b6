"""Encode rows as JSON strings, column by column.

    {"id":"a","n":1,"price":2.50,"at":1714979289123456,"raw":"AP8=","tags":["x",null],"by":{"k":{"x":1}}}

Hudi writes images of changed rows in two ways, from Avro records and from Spark rows. Their common format is used here:
dates are days and timestamps microseconds since 1970, times of day are microseconds since midnight, NaN and infinities
are strings. Null fields are included (as with Avro), bytes are base64 (as with Spark), keys of maps are strings.
Decimals are numbers; both of Hudi's ways lose them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CONTROL = r"[\x00-\x1f]"
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAD = ord("=")


def json_objects(rows: pa.StructArray) -> pa.StringArray:
    """Return each struct as a JSON object; a null struct is null."""
    return pc.if_else(pc.is_valid(rows), _struct(rows), pa.scalar(None, pa.string()))


def _texts(array: Any) -> Any:
    """Return every value as JSON; a null is `null`."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _texts(array.dictionary_decode())
    if pa.types.is_struct(kind):
        texts = _struct(array)
    elif pa.types.is_map(kind):
        entries = _joined(":", _quoted(array.keys.cast(pa.string())), _texts(array.items))
        texts = _wrapped("{", _lists(array, entries, array.offsets), "}")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        texts = _wrapped("[", _lists(array, _texts(array.values), array.offsets), "]")
    else:
        texts = _scalars(array)
    return pc.if_else(pc.is_valid(array), texts, "null")


def _struct(array: Any) -> Any:
    parts = []
    for number, field in enumerate(array.type):
        name = _quoted(pa.array([field.name]))[0].as_py()
        parts.append(_joined(":", pa.scalar(name), _texts(pc.struct_field(array, [number]))))
    return _wrapped("{", _joined(",", *parts), "}")


def _lists(array: Any, items: Any, offsets: Any) -> Any:
    """Return the joined items of each list; `items` and `offsets` belong to the parent of the slice `array`."""
    starts = offsets.cast(pa.int32())
    if array.null_count:
        # The range of a null list may contain items that belong to no list.
        begin, end = starts.to_numpy()[:-1], starts.to_numpy()[1:]
        empty = np.asarray(pc.is_null(array))
        keep = np.repeat(~empty, end - begin)
        items = items.slice(int(starts[0].as_py()), len(keep)).filter(pa.array(keep))
        starts = pa.array(np.concatenate([[0], np.cumsum(np.where(empty, 0, end - begin))]).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(starts, items), ",")


def _scalars(array: Any) -> Any:
    kind = array.type
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _wrapped('"', _base64(array.cast(pa.binary())), '"')
    if pa.types.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        unit = pa.timestamp("us") if pa.types.is_timestamp(kind) else pa.time64("us")
        return pc.cast(array, unit, safe=False).cast(pa.int64()).cast(pa.string())
    return _quoted(array.cast(pa.string()))


def _floats(array: Any) -> Any:
    texts = array.cast(pa.string())
    whole = pc.match_substring_regex(texts, r"^-?\d+$")
    texts = pc.if_else(whole, _joined("", texts, pa.scalar(".0")), texts)
    for value, name in ((float("inf"), '"Infinity"'), (float("-inf"), '"-Infinity"')):
        texts = pc.if_else(pc.equal(array, pa.scalar(value, array.type)), name, texts)
    return pc.if_else(pc.is_nan(array), '"NaN"', texts)


def _quoted(texts: Any) -> Any:
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        for code in range(0x20):
            escaped = pc.replace_substring(escaped, chr(code), _SHORT.get(chr(code), f"\\u{code:04x}"))
    return _wrapped('"', escaped, '"')


def _base64(array: Any) -> Any:
    """Return bytes in base64. Values are padded with zeros to groups of three bytes; padding becomes `=`."""
    values = array.fill_null(b"")
    _, offsets, content = values.buffers()
    limits = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    data = np.frombuffer(content or b"", np.uint8)[limits[0] : limits[-1]]
    lengths = np.diff(limits)
    triples = -(-lengths // 3)
    begins = np.concatenate([[0], np.cumsum(triples)])
    owners = np.repeat(np.arange(len(lengths)), lengths)
    padded = np.zeros(3 * int(begins[-1]), np.uint8)
    padded[3 * begins[owners] + np.arange(len(data)) - (limits[:-1] - limits[0])[owners]] = data
    a, b, c = padded.reshape(-1, 3).T
    letters = np.stack([a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63], axis=1)
    texts = _ALPHABET[letters].reshape(-1)
    ends = 4 * begins[1:]
    missing = 3 * triples - lengths
    for places in (1, 2):
        texts[ends[missing >= places] - places] = _PAD
    positions = pa.py_buffer((4 * begins).astype(np.int32).tobytes())
    return pa.StringArray.from_buffers(len(lengths), positions, pa.py_buffer(texts.tobytes()))


def _joined(separator: str, *parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, separator)


def _wrapped(before: str, texts: Any, after: str) -> Any:
    return pc.binary_join_element_wise(before, texts, after, "")
