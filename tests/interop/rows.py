"""Rows with a column of each type that both lakehouse and Apache Hudi support."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

EVERYTHING = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("narrow", pa.decimal128(9, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("instant", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("items", pa.list_(pa.int32())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("person", pa.struct([("name", pa.string()), ("at", pa.struct([("zip", pa.int32())]))])),
        ("people", pa.list_(pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))]))),
        ("by_name", pa.map_(pa.string(), pa.struct([("size", pa.float64())]))),
    ]
)


def everything(number: int) -> dict[str, Any]:
    """Return a row of EVERYTHING."""
    return {
        "id": f"k{number}",
        "ts": number,
        "flag": number % 2 == 0,
        "small": -number,
        "real": number / 4,
        "double": 1.5e300 / (number + 1),
        "narrow": Decimal(number - 3) / 100,
        "wide": Decimal("-12345678901234567890.0123456789"),
        "day": date(1969, 12, 30 + number % 2),
        "instant": datetime(2024, 5, 6, 7, 8, 9, 123456 + number, tzinfo=UTC),
        "local": datetime(1999, 12, 31, 23, 59, 59, number),
        "raw": bytes([0, 255, number]),
        "items": [1, None, number],
        "counts": [("a", number), ("b", None)],
        "person": {"name": "Zoë", "at": {"zip": 12345} if number % 2 else None},
        "people": [{"name": "x", "tags": ["t", None]}, None, {"name": None, "tags": []}],
        "by_name": [("big", {"size": 1.0}), ("none", None)],
    }


def everything_writable(number: int) -> dict[str, Any]:
    """Return a row of EVERYTHING that Hudi can write: its default list structure allows no null elements."""
    return everything(number) | {
        "items": [1, number],
        "people": [{"name": "x", "tags": ["t", "u"]}, {"name": None, "tags": []}, {"name": "y", "tags": None}],
    }


def nothing(number: int) -> dict[str, Any]:
    """Return a row of EVERYTHING with nulls in all columns except key and ordering column."""
    return {"id": f"n{number}", "ts": number}
