"""Python values become Arrow arrays exactly, or an error has the row, the column and the value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.rows.python_values import ValueMistake, converted, exact_cast, fitted, united_kinds

pd = pytest.importorskip("pandas", reason="missing: pandas")

UTC = dt.UTC
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678)
US, MS, NS = pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("ns")

EXACT: list[Any] = [
    ([1, None, -3], pa.int32(), [1, None, -3]),
    ([np.int64(4), np.int8(2)], pa.int64(), [4, 2]),
    ([1, 2.5, float("inf")], pa.float64(), [1.0, 2.5, float("inf")]),
    ([0.1, 2.5, None], pa.float32(), [pytest.approx(0.1), 2.5, None]),
    ([Decimal("1.50"), 7, None], pa.decimal128(6, 2), [Decimal("1.50"), Decimal("7.00"), None]),
    ([10**20], pa.decimal128(38, 0), [Decimal(10**20)]),
    (["x", None, "ü"], pa.string(), ["x", None, "ü"]),
    pytest.param([b"x", bytearray(b"y"), memoryview(b"z")], pa.binary(), [b"x", b"y", b"z"], id="bytes"),
    ([dt.date(2026, 1, 2)], pa.date32(), [dt.date(2026, 1, 2)]),
    ([MOMENT], US, [MOMENT]),
    ([MOMENT.replace(microsecond=5000)], MS, [MOMENT.replace(microsecond=5000)]),
    (
        [MOMENT, MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))],
        pa.timestamp("us", "UTC"),
        [MOMENT.replace(tzinfo=UTC), (MOMENT - dt.timedelta(hours=2)).replace(tzinfo=UTC)],
    ),
    ([pd.Timestamp(MOMENT), MOMENT], US, [MOMENT, MOMENT]),
    ([dt.time(1, 2, 3, 4)], pa.time64("us"), [dt.time(1, 2, 3, 4)]),
    ([[1, None], None, [], (2,), {3}, np.array([4])], pa.list_(pa.int32()), [[1, None], None, [], [2], [3], [4]]),
    (
        [{"b": "x"}, None, {"a": 1}, {}],
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": None, "b": "x"}, None, {"a": 1, "b": None}, {"a": None, "b": None}],
    ),
    ([{"k": 1}, None, {}, [("j", None)]], pa.map_(pa.string(), pa.int32()), [[("k", 1)], None, [], [("j", None)]]),
    ([None, None], pa.struct([("a", pa.int32())]), [None, None]),
]
INFERRED: list[Any] = [
    ([True, None], pa.bool_()),
    ([1, np.int8(2)], pa.int64()),
    ([1, 2.5], pa.float64()),
    ([Decimal("1.5"), 1, Decimal("12.25")], pa.decimal128(4, 2)),
    (["x"], pa.string()),
    ([b"x"], pa.binary()),
    ([dt.date(2026, 1, 2)], pa.date32()),
    ([MOMENT], US),
    ([MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
    ([[None], [1], [2.5]], pa.list_(pa.float64())),
    ([{"a": 1}, {"b": {"c": "x"}}], pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
    ([None], pa.null()),
]
MISTAKES: list[Any] = [
    ([1, 300, 2], pa.int8(), 1, "", "300"),
    ([1, None, True], pa.int32(), 2, "", "True is of type bool"),
    ([1, 1.0], pa.int32(), 1, "", "1.0 is of type float"),
    ([2**53 + 1, 0.5], pa.float64(), 0, "", "9007199254740993"),
    ([0.5, 1 / 3], pa.float32(), 1, "", "0.333"),
    ([0.5], pa.decimal128(6, 2), 0, "", "0.5 is of type float"),
    ([Decimal("1.5"), Decimal("1.234")], pa.decimal128(6, 2), 1, "", "1.234"),
    ([Decimal("99999")], pa.decimal128(6, 2), 0, "", "99999"),
    (["x", 1], pa.string(), 1, "", "1 is of type int"),
    (["x", float("nan")], pa.string(), 1, "", "nan is of type float"),
    (["x", b"y"], pa.string(), 1, "", "of type bytes"),
    ([dt.date(2026, 1, 2), MOMENT], pa.date32(), 1, "", "of type datetime"),
    ([MOMENT.replace(microsecond=0), MOMENT], MS, 1, "", "678"),
    ([pd.Timestamp("2026-01-02T03:04:05.123456789")], US, 0, "", "123456789"),
    ([np.datetime64("2026-01-02T03:04:05")], US, 0, "", "astype"),
    ([MOMENT, pd.NaT], US, 1, "", "write None"),
    ([MOMENT, MOMENT.replace(tzinfo=UTC)], US, 1, "", "tzinfo=None"),
    ([[1], None, [2, "x"]], pa.list_(pa.int32()), 2, "element", "'x' is of type str"),
    ([None, {"a": {"b": "x"}}], pa.struct([("a", pa.struct([("b", pa.int32())]))]), 1, "a.b", "'x'"),
    ([{"a": 1}, {"c": 5}], pa.struct([("a", pa.int32())]), 1, "", "field 'c' with the value 5"),
    ([{"k": 1}, {2: 1}], pa.map_(pa.string(), pa.int32()), 1, "key", "2 is of type int"),
    ([1, None, "x"], None, 2, "", "but 1 before it is of type int"),
    ([True, 1], None, 1, "", "1 is of type int"),
    (["x", b"y"], None, 1, "", "of type bytes"),
    ([dt.date(2026, 1, 2), MOMENT], None, 1, "", "of type datetime"),
    ([MOMENT, MOMENT.replace(tzinfo=UTC)], None, 1, "", "with a zone"),
    ([1.5, Decimal("1")], None, 1, "", "Decimal"),
    ([2**63], None, 0, "", "9223372036854775808"),
    ([dt.timedelta(1)], None, 0, "", "total_seconds"),
    ([{"a": 1}, {"a": "x"}], None, 1, "a", "'x'"),
    ([{1: 2}], None, 0, "", "must be a string"),
    pytest.param([object()], None, 0, "", "cannot store", id="object"),
]


@pytest.mark.parametrize(("values", "kind", "expected"), EXACT, ids=lambda part: str(part)[:40])
def test_values_are_converted_to_the_type_of_the_table_exactly(
    values: list[Any], kind: pa.DataType, expected: list[Any]
) -> None:
    array = converted(values, kind)
    array.validate(full=True)
    assert array.type == kind
    assert array.to_pylist() == expected


@pytest.mark.parametrize(("values", "kind"), INFERRED, ids=lambda part: str(part)[:40])
def test_type_follows_from_all_values(values: list[Any], kind: pa.DataType) -> None:
    array = converted(values, None)
    array.validate(full=True)
    assert array.type == kind


@pytest.mark.parametrize(("values", "kind", "row", "path", "text"), MISTAKES, ids=lambda part: str(part)[:40])
def test_value_that_does_not_fit_is_an_error_with_its_row_and_column(
    values: list[Any], kind: pa.DataType | None, row: int, path: str, text: str
) -> None:
    with pytest.raises(ValueMistake) as raised:
        converted(values, kind)
    assert (raised.value.row, raised.value.path) == (row, path)
    assert text in raised.value.reason


def test_mistake_in_many_values_has_its_position() -> None:
    values: list[Any] = list(range(10_000))
    values[7_321] = 2**40
    with pytest.raises(ValueMistake) as raised:
        converted(values, pa.int32())
    assert raised.value.row == 7_321


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.5]), pa.int64()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([1.5]), pa.decimal128(5, 2)),
        (pa.array([Decimal("1.234")]), pa.decimal128(5, 2)),
        (pa.array([1001], MS), pa.timestamp("s")),
        (pa.array([1], US), pa.date32()),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.date32()),
        (pa.array([0], pa.timestamp("us", "UTC")), US),
        (pa.array([1]), pa.string()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.bool_()),
        (pa.array([1 / 3]), pa.float32()),
    ],
    ids=str,
)
def test_cast_refuses_values_without_an_exact_representation(array: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(pa.ArrowInvalid):
        exact_cast(array, kind)


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([1.0, None]), pa.int32(), [1, None]),
        (pa.array([7]), pa.decimal128(5, 2), [Decimal("7.00")]),
        (pa.array([0, 86_400_000_000], US), pa.date32(), [dt.date(1970, 1, 1), dt.date(1970, 1, 2)]),
        (pa.array([0], US), pa.timestamp("us", "UTC"), [dt.datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.array(["x"]).dictionary_encode(), pa.string(), ["x"]),
        (pa.array([float("nan"), 0.1]), pa.float32(), [pytest.approx(float("nan"), nan_ok=True), pytest.approx(0.1)]),
    ],
    ids=str,
)
def test_cast_converts_values_with_an_exact_representation(
    array: pa.Array, kind: pa.DataType, expected: list[Any]
) -> None:
    assert exact_cast(array, kind).to_pylist() == expected


def test_types_of_batches_are_united_and_their_values_fit() -> None:
    first = converted([{"a": 1, "b": [1]}, None], None)
    second = converted([{"a": 2.5, "c": Decimal("1.25")}], None)
    both = united_kinds(first.type, second.type)
    assert both is not None
    rows = [*fitted(first, both).to_pylist(), *fitted(second, both).to_pylist()]
    assert rows == [
        {"a": 1.0, "b": [1], "c": None},
        None,
        {"a": 2.5, "b": None, "c": Decimal("1.25")},
    ]
    assert united_kinds(pa.int64(), pa.string()) is None
    assert united_kinds(pa.list_(pa.int64()), pa.list_(pa.string())) is None
    assert united_kinds(pa.null(), pa.string()) == pa.string()
