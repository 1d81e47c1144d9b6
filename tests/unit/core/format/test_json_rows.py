"""Test the encoding of rows as JSON texts."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.json_rows import json_objects


def text(value: Any, kind: pa.DataType) -> str:
    """Return the JSON of one value."""
    whole = json_objects(pa.StructArray.from_arrays([pa.array([value], kind)], names=["x"]))[0].as_py()
    assert whole.startswith('{"x":') and whole.endswith("}")
    return str(whole[5:-1])


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.int32(), "null"),
        (True, pa.bool_(), "true"),
        (-7, pa.int64(), "-7"),
        (0.25, pa.float32(), "0.25"),
        (3.0, pa.float64(), "3.0"),
        (1.5e300, pa.float64(), "1.5e+300"),
        (float("nan"), pa.float32(), '"NaN"'),
        (float("inf"), pa.float64(), '"Infinity"'),
        (float("-inf"), pa.float64(), '"-Infinity"'),
        (Decimal("-0.02"), pa.decimal128(9, 2), "-0.02"),
        (Decimal("12345678901234567890.0123456789"), pa.decimal128(38, 10), "12345678901234567890.0123456789"),
        (date(1969, 12, 30), pa.date32(), "-2"),
        (datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC), pa.timestamp("us", "UTC"), "1714979289123456"),
        (datetime(1970, 1, 1, 0, 0, 1), pa.timestamp("ms"), "1000000"),
        (time(0, 0, 1), pa.time64("us"), "1000000"),
        (time(0, 0, 1), pa.time32("ms"), "1000000"),
        ("plain", pa.string(), '"plain"'),
        ('a"b\\c/ü\u2028', pa.string(), '"a\\"b\\\\c/ü\u2028"'),
        ("\x00\b\f\n\r\t\x1f\x7f", pa.string(), '"\\u0000\\b\\f\\n\\r\\t\\u001f\x7f"'),
        (b"", pa.binary(), '""'),
        (b"\x00", pa.binary(), '"AA=="'),
        (b"\x00\xff", pa.binary(), '"AP8="'),
        (b"\x00\xff\x01", pa.binary(), '"AP8B"'),
        (b"abcd", pa.binary(4), '"YWJjZA=="'),
        ([], pa.list_(pa.int32()), "[]"),
        ([1, None], pa.list_(pa.int32()), "[1,null]"),
        ([["a"], None, []], pa.list_(pa.list_(pa.string())), '[["a"],null,[]]'),
        ([("a", 1), ('q"', None)], pa.map_(pa.string(), pa.int64()), '{"a":1,"q\\"":null}'),
        ({"y": None}, pa.struct([("y", pa.string())]), '{"y":null}'),
        (None, pa.struct([("y", pa.string())]), "null"),
    ],
)
def test_a_value_is_encoded_as_json(value: Any, kind: pa.DataType, expected: str) -> None:
    assert text(value, kind) == expected


def test_names_are_escaped_and_null_rows_stay_null() -> None:
    rows = pa.array([{'a"b': 1}, None, {'a"b': None}], pa.struct([('a"b', pa.int32())]))
    assert json_objects(rows).to_pylist() == ['{"a\\"b":1}', None, '{"a\\"b":null}']


def test_sliced_arrays_are_encoded_without_hidden_rows() -> None:
    kind = pa.struct([("l", pa.list_(pa.binary())), ("m", pa.map_(pa.string(), pa.list_(pa.int32())))])
    rows = pa.array(
        [{"l": [b"x"] * n, "m": [(str(i), [i] * i) for i in range(n)]} if n % 3 else {"l": None, "m": None}
         for n in range(8)],
        kind,
    )  # fmt: skip
    whole = json_objects(rows).to_pylist()
    assert json_objects(rows.slice(2, 4)).to_pylist() == whole[2:6]
    assert json.loads(whole[2]) == {"l": ["eA==", "eA=="], "m": {"0": [], "1": [1]}}
    assert json_objects(rows.slice(0, 0)).to_pylist() == []
