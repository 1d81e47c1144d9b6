"""Column ranges in the extra metadata of commits."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse.core.planning.key_ranges import decode_ranges, encode_ranges, json_range
from lakehouse.model.commit import WriteStat


def stat(**ranges: tuple) -> WriteStat:
    """Return a write stat with these column ranges."""
    return WriteStat(partition="", file_id="g", path="g.parquet", ranges=ranges)


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (1, 2, pa.int64()),
        (-(2**63), 2**63 - 1, pa.int64()),
        (0.1, 0.2, pa.float64()),
        ("a", "b", pa.string()),
        (dt.date(2026, 1, 1), dt.date(2026, 2, 1), pa.date32()),
        (dt.datetime(2026, 1, 1, 1, 2, 3, 4), dt.datetime(2026, 2, 1), pa.timestamp("us")),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 2, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (Decimal("1.10"), Decimal("2.20"), pa.decimal128(10, 2)),
        (False, True, pa.bool_()),
    ],
)
def test_decoded_ranges_have_the_type_of_the_column(low: object, high: object, kind: pa.DataType) -> None:
    kept = json_range(low, high, 3)
    assert kept is not None
    decoded = decode_ranges(encode_ranges([stat(x=kept)]), pa.schema([("x", kind)]))
    assert decoded == {"g.parquet": {"x": (low, high, 3)}}


@pytest.mark.parametrize(("low", "high"), [(math.nan, 1.0), (-math.inf, 1.0), ("a" * 65, "b"), (b"a", b"b"), (None, 1)])
def test_long_and_inexact_bounds_have_no_range(low: object, high: object) -> None:
    assert json_range(low, high, 0) is None


def test_columns_dropped_or_changed_to_text_have_no_range() -> None:
    text = encode_ranges([stat(gone=(1, 2, 0), number=(5, 10, 0), word=("a", "b", 0))])
    schema = pa.schema([("number", pa.string()), ("word", pa.string())])
    assert decode_ranges(text, schema) == {"g.parquet": {"word": ("a", "b", 0)}}


@pytest.mark.parametrize("text", [None, ""])
def test_commit_of_another_writer_has_no_ranges(text: str | None) -> None:
    assert decode_ranges(text, pa.schema([])) == {}
