"""Record keys of whole batches, and rows that have no valid key."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse.core.rows.key_values import column, value_text
from lakehouse.core.rows.keys import bad_key_mask, record_keys, required_columns
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType


def simple(field: str = "id") -> KeyConfig:
    return KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=(field,))


def complex_key(*fields: str, field_prefix: bool | None = None) -> KeyConfig:
    return KeyConfig(generator=KeyGeneratorType.COMPLEX, record_key_fields=fields, field_prefix=field_prefix)


def text(values: list[object], kind: pa.DataType, *, consistent: bool = False) -> list[str | None]:
    return value_text(pa.array(values, kind), name="x", consistent_timestamps=consistent).to_pylist()


def test_simple_key_is_the_value_alone() -> None:
    data = pa.record_batch({"id": pa.array([7, -1, 9223372036854775807])})
    assert record_keys(data, simple()).to_pylist() == ["7", "-1", "9223372036854775807"]


def test_record_keys_are_chunked_for_a_table_and_an_array_for_a_batch() -> None:
    batch = pa.record_batch({"id": ["a"]})
    assert isinstance(record_keys(batch, simple()), pa.StringArray)
    assert record_keys(pa.Table.from_batches([batch, batch]), simple()).num_chunks == 2


def test_complex_key_names_its_fields_and_has_placeholders() -> None:
    data = pa.table({"id": [1, None, 3], "name": ["Alice", "", None]})
    with pytest.raises(UserError, match=r"1 of 3 rows have a null or empty record key \(id, name\); first is row 1"):
        record_keys(data, complex_key("id", "name"))
    good = data.take([0, 2])
    assert record_keys(good, complex_key("id", "name")).to_pylist() == ["id:1,name:Alice", "id:3,name:__null__"]
    flipped = pa.table({"a": ["", "x"], "b": ["y", "z"]})
    assert record_keys(flipped, complex_key("a", "b")).to_pylist() == ["a:__empty__,b:y", "a:x,b:z"]


@pytest.mark.parametrize(("field_prefix", "key"), [(True, "id:5"), (False, "5"), (None, "id:5")])
def test_complex_key_of_one_field_follows_the_encoding_of_the_table(field_prefix: bool | None, key: str) -> None:
    data = pa.table({"id": [5]})
    assert record_keys(data, complex_key("id", field_prefix=field_prefix)).to_pylist() == [key]


def test_several_key_fields_of_an_unpartitioned_table_are_written_with_names() -> None:
    config = KeyConfig(generator=KeyGeneratorType.NON_PARTITION, record_key_fields=("a", "b"))
    assert record_keys(pa.table({"a": [1], "b": [True]}), config).to_pylist() == ["a:1,b:true"]


def test_simple_generator_refuses_several_key_fields() -> None:
    config = KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("a", "b"))
    with pytest.raises(UserError, match="SIMPLE takes one record key field"):
        record_keys(pa.table({"a": [1], "b": [2]}), config)


def test_null_and_empty_simple_keys_are_refused_with_their_number_and_the_first_row() -> None:
    data = pa.table({"id": ["a", None, ""], "v": [1, 2, 3]})
    with pytest.raises(UserError, match=r"2 of 3 rows .* record key \(id\); first is row 1: \{'id': None\}") as caught:
        record_keys(data, simple())
    assert caught.value.facts["rows"] == 2


def test_bad_key_mask_includes_invalid_keys_and_paths() -> None:
    config = KeyConfig(
        generator=KeyGeneratorType.SIMPLE,
        record_key_fields=("id",),
        partition_fields=("p",),
        partition_types=("SIMPLE",),
    )
    data = pa.table({"id": ["a", None, "c", ""], "p": ["x", "x", "..", ".."]})
    assert bad_key_mask(data, config).to_pylist() == [False, True, True, True]
    assert bad_key_mask(data.slice(0, 1), config).to_pylist() == [False]
    assert bad_key_mask(data.slice(0, 0), config).to_pylist() == []


def test_missing_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"no column 'oder_id' in the data. Did you mean 'order_id'\?"):
        record_keys(pa.table({"order_id": [1]}), simple("oder_id"))


def test_nested_fields_are_read_by_dotted_path_also_in_a_null_struct() -> None:
    data = pa.table({"a": pa.array([{"b": {"c": 1}}, {"b": None}, None])})
    assert column(data, "a.b.c").to_pylist() == [1, None, None]
    assert record_keys(data.slice(0, 1), simple("a.b.c")).to_pylist() == ["1"]
    with pytest.raises(UserError, match=r"no column 'bb' \(part of 'a.bb'\)"):
        column(data, "a.bb")


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1]]),
        pa.array([{"x": 1}]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        pa.array([b"x"]),
    ],
)
def test_types_without_a_text_are_refused_by_name(values: pa.Array) -> None:
    with pytest.raises(UserError, match=r"column 'id' of type .* cannot be part of a key"):
        record_keys(pa.table({"id": values}), simple())


def test_table_without_record_key_fields_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no record key field"):
        record_keys(pa.table({"id": [1]}), KeyConfig(generator=KeyGeneratorType.NON_PARTITION, record_key_fields=()))


def test_required_columns_are_top_level_and_unique() -> None:
    config = KeyConfig(
        generator=KeyGeneratorType.COMPLEX, record_key_fields=("a.b", "c"), partition_fields=("a.d", "c", "e")
    )
    assert required_columns(config) == ("a", "c", "e")


def test_whole_values_print_as_in_java() -> None:
    assert text([True, None], pa.bool_()) == ["true", None]
    assert text([date(2023, 4, 1)], pa.date32()) == ["2023-04-01"]
    assert text([2932897], pa.date32()) == ["+10000-01-01"]
    assert text([Decimal("1.50"), Decimal("0.00"), Decimal("-0.01")], pa.decimal128(10, 2)) == ["1.50", "0.00", "-0.01"]
    assert text([Decimal("0.0000000001")], pa.decimal128(20, 10)) == ["1E-10"]
    assert text(["ż", ""], pa.large_string()) == ["ż", ""]
    assert text(["a", "b"], pa.dictionary(pa.int8(), pa.string())) == ["a", "b"]
    assert text([None], pa.null()) == [None]


def test_timestamps_print_as_epoch_numbers_in_the_unit_of_hudi() -> None:
    noon = datetime(2023, 4, 1, 12, 1, tzinfo=UTC)
    assert text([noon], pa.timestamp("us", "UTC")) == ["1680350460000000"]
    assert text([noon], pa.timestamp("ns", "UTC")) == ["1680350460000000"]
    assert text([noon], pa.timestamp("ms", "Asia/Kolkata")) == ["1680350460000"]


def test_consistent_timestamps_print_as_java_sql_timestamp() -> None:
    assert text([0, 1_500_000, -1, 123_000], pa.timestamp("us"), consistent=True) == [
        "1970-01-01 00:00:00.0",
        "1970-01-01 00:00:01.5",
        "1969-12-31 23:59:59.999999",
        "1970-01-01 00:00:00.123",
    ]


def test_floating_point_numbers_print_as_in_java() -> None:
    expected = {
        1.0: "1.0",
        0.1: "0.1",
        -0.0: "-0.0",
        0.001: "0.001",
        9.99e-4: "9.99E-4",
        9999999.0: "9999999.0",
        1e7: "1.0E7",
        1e10: "1.0E10",
        123456789.125: "1.23456789125E8",
        1.7976931348623157e308: "1.7976931348623157E308",
        5e-324: "4.9E-324",
        float("inf"): "Infinity",
        float("-inf"): "-Infinity",
        float("nan"): "NaN",
    }
    assert text(list(expected), pa.float64()) == list(expected.values())
    assert text([0.0, -0.0, None], pa.float64()) == ["0.0", "-0.0", None]
    assert text([0.3, 16777216.0, 3.4028234663852886e38, 1.0], pa.float32()) == [
        "0.3",
        "1.6777216E7",
        "3.4028235E38",
        "1.0",
    ]
