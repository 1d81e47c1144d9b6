"""Values of every type survive insert, update and read; reads of old files apply type promotions."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from tests.support.tables import make_env

UTC = dt.UTC
BERLIN = dt.timezone(dt.timedelta(hours=1))
INNER = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])

#: name, input type, values, stored type (None: the same), values read (None: the same)
CASES: list[tuple[str, pa.DataType, list[Any], pa.DataType | None, list[Any] | None]] = [
    ("bool", pa.bool_(), [True, False, None], None, None),
    ("int8", pa.int8(), [-128, 127, None], pa.int32(), None),
    ("uint16", pa.uint16(), [0, 65_535, None], pa.int32(), None),
    ("int32", pa.int32(), [-(2**31), 2**31 - 1, None], None, None),
    ("uint32", pa.uint32(), [0, 2**32 - 1, None], pa.int64(), None),
    ("int64", pa.int64(), [-(2**63), 2**63 - 1, None], None, None),
    ("float32", pa.float32(), [0.5, float("inf"), None], None, None),
    ("float64", pa.float64(), [1e-300, -0.0, None], None, None),
    ("string", pa.string(), ["", "𐐷 ü\x00\n", None], None, None),
    ("large_string", pa.large_string(), ["x", "", None], pa.string(), None),
    ("string_view", pa.string_view(), ["x", "longer than twelve bytes", None], pa.string(), None),
    ("encoded", pa.dictionary(pa.int8(), pa.string()), ["x", "x", None], pa.string(), None),
    ("binary", pa.binary(), [b"", b"\x00\xff", None], None, None),
    ("fixed", pa.binary(4), [b"abcd", b"\x00\x01\x02\x03", None], None, None),
    ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None], None, None),
    ("date64", pa.date64(), [dt.date(1969, 12, 31), dt.date(2026, 1, 1), None], pa.date32(), None),
    ("time_ms", pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999_000), None], None, None),
    ("time_us", pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999_999), None], None, None),
    (
        "ntz",
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), dt.datetime(2026, 3, 29, 2, 30, 0, 1), None],
        None,
        None,
    ),
    ("ntz_s", pa.timestamp("s"), [dt.datetime(1969, 12, 31), dt.datetime(2026, 1, 1), None], pa.timestamp("us"), None),
    (
        "utc",
        pa.timestamp("us", "UTC"),
        [dt.datetime(1900, 1, 1, tzinfo=UTC), dt.datetime(2026, 1, 1, 1, 2, 3, 456_789, tzinfo=UTC), None],
        None,
        None,
    ),
    (
        "zoned",
        pa.timestamp("ms", "Europe/Berlin"),
        [dt.datetime(2026, 1, 1, 1, tzinfo=BERLIN), dt.datetime(2026, 1, 1, tzinfo=UTC), None],
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 1, 1, tzinfo=UTC), dt.datetime(2026, 1, 1, tzinfo=UTC), None],
    ),
    ("decimal9", pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.01"), None], None, None),
    ("decimal18", pa.decimal128(18, 0), [Decimal(10**17), Decimal(-1), None], None, None),
    ("decimal38", pa.decimal128(38, 10), [Decimal("9" * 28 + ".0123456789"), Decimal(0), None], None, None),
    ("list", pa.list_(pa.int64()), [[1, None], [], None], pa.list_(pa.field("element", pa.int64())), None),
    ("large_list", pa.large_list(pa.int8()), [[1], [2, 3], None], pa.list_(pa.field("element", pa.int32())), None),
    ("map", pa.map_(pa.string(), pa.float64()), [[("a", 1.5), ("b", None)], [], None], None, None),
    ("struct", INNER, [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}, None], None, None),
    (
        "list_of_structs",
        pa.list_(INNER),
        [[{"a": 1, "b": []}, None], [], None],
        None,
        None,
    ),
    (
        "map_of_structs",
        pa.map_(pa.string(), pa.struct([("at", pa.timestamp("us", "UTC")), ("money", pa.decimal128(10, 2))])),
        [[("k", {"at": dt.datetime(2026, 1, 1, tzinfo=UTC), "money": Decimal("1.20")})], [("k", None)], None],
        None,
        None,
    ),
    ("list_of_lists", pa.list_(pa.list_(pa.date32())), [[[dt.date(2026, 1, 1)], None, []], [], None], None, None),
]


def make(**options: str) -> Table:
    """Return an empty table with key columns only."""
    env = make_env()
    options = {"lakehouse.schema.type.change": "any", **options}
    return Table.create(env.storage.root, name="t", record_key=["id"], options=options, env=env)


def read(table: Table, column: str = "x") -> dict[str, Any]:
    """Return values by key."""
    return {row["id"]: row[column] for row in table.scan(["id", column]).to_arrow().to_pylist()}


@pytest.mark.parametrize(("name", "kind", "values", "stored", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_type_survives_insert_update_and_read(
    name: str, kind: pa.DataType, values: list[Any], stored: pa.DataType | None, wanted: list[Any] | None
) -> None:
    table = make()
    wanted = wanted or values
    table.insert(pa.table({"id": ["a", "b", "c"], "x": pa.array(values, kind)}))
    assert read(table) == dict(zip("abc", wanted, strict=True))
    # b gets the value of a; a and c are rewritten without change; d is new.
    table.upsert(pa.table({"id": ["b", "d"], "x": pa.array([values[0], values[1]], kind)}))
    assert read(table) == {"a": wanted[0], "b": wanted[0], "c": wanted[2], "d": wanted[1]}
    table.bulk_insert(pa.table({"id": ["e"], "x": pa.array([values[1]], kind)}))
    assert read(table)["e"] == wanted[1]
    if stored is not None:
        assert table.schema.field("x").type == stored
    assert read(Table.open(table.location)) == read(table)


def test_all_types_in_one_table_survive_with_null_rows() -> None:
    table = make()
    columns = {name: pa.array(values, kind) for name, kind, values, _, _ in CASES}
    table.upsert(pa.table({"id": ["a", "b", "c"], **columns}))
    table.upsert(pa.table({"id": ["a"], **{name: pa.array([None], kind) for name, kind, *_ in CASES}}))
    rows = {row["id"]: row for row in table.scan(["id", *columns]).to_arrow().to_pylist()}
    assert set(rows["a"].values()) == {"a", None}
    assert rows["b"] == {"id": "b"} | {name: (wanted or values)[1] for name, _, values, _, wanted in CASES}


NUMBERS = [
    (pa.int32(), 7, "7"),
    (pa.int64(), 2**53 + 1, str(2**53 + 1)),
    (pa.float64(), 0.25, "0.25"),
    (pa.string(), "x", "x"),
]


@pytest.mark.parametrize("rewrites", [True, False])
def test_stored_files_follow_promotions_from_int_to_string(rewrites: bool) -> None:
    table = make(**{"hoodie.parquet.small.file.limit": str(1 << 30) if rewrites else "0"})
    for number, (kind, value, _) in enumerate(NUMBERS):
        table.upsert(pa.table({"id": [f"k{number}"], "x": pa.array([value], kind)}))
        assert table.schema.field("x").type == kind
    found = read(table)
    if rewrites:
        # Each rewrite stored the value in the type of that time, so the long was converted to double first.
        assert found == {"k0": "7.0", "k1": "9.007199254740992E15", "k2": "0.25", "k3": "x"}
    else:
        assert found == {f"k{number}": text for number, (*_, text) in enumerate(NUMBERS)}
        assert table.scan(["id"], where="x = '7'").to_arrow().to_pylist() == [{"id": "k0"}]


def test_batch_with_narrower_types_is_widened_to_the_table() -> None:
    table = make()
    for number, (kind, value, _) in enumerate(reversed(NUMBERS)):
        table.upsert(pa.table({"id": [f"k{number}"], "x": pa.array([value], kind)}))
    assert table.schema.field("x").type == pa.string()
    assert read(table) == {f"k{number}": text for number, (*_, text) in enumerate(reversed(NUMBERS))}


def test_dates_bytes_and_decimals_are_promoted() -> None:
    table = make(**{"hoodie.parquet.small.file.limit": "0"})
    first = {"d": pa.array([dt.date(2026, 1, 31)]), "b": pa.array(["text"]), "m": pa.array([Decimal("1.50")])}
    table.insert(pa.table({"id": ["a"], **first}))
    wider = pa.array([Decimal("12345678.125")], pa.decimal128(20, 3))
    table.insert(pa.table({"id": ["b"], "d": ["any"], "b": pa.array([b"bytes"]), "m": wider}))
    assert read(table, "d") == {"a": "2026-01-31", "b": "any"}
    assert read(table, "b") == {"a": "text", "b": "bytes"}
    assert read(table, "m") == {"a": Decimal("1.500"), "b": Decimal("12345678.125")}


@pytest.mark.parametrize("rewrites", [True, False])
def test_added_columns_and_fields_are_null_in_old_rows(rewrites: bool) -> None:
    table = make(**{"hoodie.parquet.small.file.limit": str(1 << 30) if rewrites else "0"})
    old = pa.struct([("a", pa.int32())])
    new = pa.struct([("b", pa.string()), ("a", pa.int64())])
    shapes = [(old, {"a": 1}), (new, {"a": 2, "b": "x"}), (old, {"a": 3})]
    for number, (kind, value) in enumerate(shapes):
        columns: dict[str, pa.Array] = {
            "s": pa.array([value], kind),
            "l": pa.array([[value, None]], pa.list_(kind)),
            "m": pa.array([[("k", value)]], pa.map_(pa.string(), kind)),
        }
        if number >= 1:
            columns["late"] = pa.array([number], pa.int32())
        table.upsert(pa.table({"id": [f"k{number}"], **columns}))
    wanted = {"k0": {"a": 1, "b": None}, "k1": {"a": 2, "b": "x"}, "k2": {"a": 3, "b": None}}
    assert read(table, "s") == wanted
    assert read(table, "l") == {key: [value, None] for key, value in wanted.items()}
    assert read(table, "m") == {key: [("k", value)] for key, value in wanted.items()}
    assert read(table, "late") == {"k0": None, "k1": 1, "k2": 2}
    assert table.schema.names == ["id", "s", "l", "m", "late"]


def test_time_travel_has_the_schema_of_its_instant() -> None:
    table = make()
    first = table.upsert(pa.table({"id": ["a"], "x": pa.array([1], pa.int32())}))
    table.upsert(pa.table({"id": ["b"], "x": pa.array([0.5]), "late": ["y"]}))
    then = table.scan(as_of=first.instant.requested).to_arrow()
    assert "late" not in then.column_names
    assert then.schema.field("x").type == pa.int32()
    assert table.scan(["x"]).to_arrow().schema.field("x").type == pa.float64()


def test_required_nested_values_may_become_optional() -> None:
    table = make()
    strict = pa.list_(pa.field("item", pa.int32(), nullable=False))
    table.upsert(pa.table({"id": ["a"], "x": pa.array([[1]], strict)}))
    table.upsert(pa.table({"id": ["b"], "x": pa.array([[2, None]], pa.list_(pa.int32()))}))
    assert read(table) == {"a": [1], "b": [2, None]}
    required = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    table = make()
    table.upsert(pa.table({"id": ["a", "b"], "x": pa.array([{"a": 1}, None], required)}))
    table.upsert(pa.table({"id": ["c"], "x": pa.array([{"a": 3}], required)}))
    assert read(table) == {"a": {"a": 1}, "b": None, "c": {"a": 3}}


def test_keys_may_have_any_type_with_a_text_form() -> None:
    env = make_env()
    table = Table.create(env.storage.root, name="t", record_key=["day", "n"], env=env)
    rows = pa.table({"day": pa.array([dt.date(2026, 1, 31)] * 2), "n": pa.array([1, 2], pa.int64()), "v": ["x", "y"]})
    table.upsert(rows)
    table.upsert(rows.slice(1).set_column(2, "v", pa.array(["z"])))
    found = table.scan(["_hoodie_record_key", "v"]).to_arrow().sort_by("_hoodie_record_key").to_pylist()
    assert [tuple(row.values()) for row in found] == [("day:2026-01-31,n:1", "x"), ("day:2026-01-31,n:2", "z")]


def test_dates_beyond_the_range_of_python_are_kept() -> None:
    table = make()
    far = pa.array([4_000_000, -1_000_000], pa.int32()).cast(pa.date32())
    late = pa.array([400_000_000_000_000_000, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table.upsert(pa.table({"id": ["a", "b"], "x": far, "y": late}))
    table.upsert(pa.table({"id": ["b"], "x": far.slice(0, 1), "y": late.slice(0, 1)}))
    rows = table.scan(["x", "y"]).to_arrow()
    assert rows.column("x").cast(pa.int32()).to_pylist() == [4_000_000, 4_000_000]
    assert rows.column("y").cast(pa.int64()).to_pylist() == [400_000_000_000_000_000] * 2
