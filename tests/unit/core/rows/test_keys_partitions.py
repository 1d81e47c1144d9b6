"""Partition paths of whole batches, and parsing of paths into values."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from lakehouse.core.rows.keys import bad_key_mask, partition_paths
from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, escape, parse_partition_path, unescape
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat


def config(*fields: str, hive_style: bool = False, url_encode: bool = False) -> KeyConfig:
    return KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("id",),
        partition_fields=fields,
        partition_types=("SIMPLE",) * len(fields),
        hive_style=hive_style,
        url_encode=url_encode,
    )


def paths(values: list[object], *, kind: pa.DataType | None = None, **options: bool) -> list[str]:
    data = pa.table({"id": list(range(len(values))), "p": pa.array(values, kind)})
    return partition_paths(data, config("p", **options)).to_pylist()


def test_path_of_an_unpartitioned_table_is_empty() -> None:
    assert partition_paths(pa.table({"id": [1, 2]}), config()).to_pylist() == ["", ""]
    assert parse_partition_path("", config()) == ()


def test_path_is_the_value_or_field_and_value() -> None:
    assert paths(["x", "y", "x"]) == ["x", "y", "x"]
    assert paths([date(2024, 2, 29)], hive_style=True) == ["p=2024-02-29"]
    assert paths([10, None], kind=pa.int8()) == ["10", DEFAULT_PARTITION]
    assert paths([0.0, -0.0, 1e10]) == ["0.0", "-0.0", "1.0E10"]


def test_null_and_empty_values_go_to_the_default_partition() -> None:
    assert paths([None, "", "a"], hive_style=True) == [f"p={DEFAULT_PARTITION}"] * 2 + ["p=a"]


def test_path_joins_several_fields_in_their_order() -> None:
    data = pa.table({"id": [1, 2, 3, 4], "a": [1, 2, 1, None], "b": ["x", "x", "y", "x"], "c": [True] * 4})
    assert partition_paths(data, config("a", "b", "c")).to_pylist() == [
        "1/x/true",
        "2/x/true",
        "1/y/true",
        f"{DEFAULT_PARTITION}/x/true",
    ]
    assert partition_paths(data, config("b", "a", hive_style=True))[1].as_py() == "b=x/a=2"


def test_dictionary_and_chunked_columns_give_the_same_paths() -> None:
    chunked = pa.chunked_array([["x", "y"], [], ["x"]]).dictionary_encode()
    assert partition_paths(pa.table({"p": chunked}), config("p")).to_pylist() == ["x", "y", "x"]
    assert partition_paths(pa.table({"p": pa.array([], pa.string())}), config("p")).to_pylist() == []


def test_url_encoding_escapes_only_the_characters_of_hive() -> None:
    assert escape("a b/c=d:é}%") == "a b%2Fc%3Dd%3Aé}%25"
    assert escape("\x01\x7f\"#'*?\\{[]^") == "%01%7F%22%23%27%2A%3F%5C%7B%5B%5D%5E"
    assert unescape("100%25 %zz %2") == "100% %zz %2"
    assert paths(["a/b", "2024-01-01 00:00"], url_encode=True, hive_style=True) == ["p=a%2Fb", "p=2024-01-01 00%3A00"]


def test_slash_in_a_value_makes_levels_unless_it_is_escaped() -> None:
    assert paths(["2024/01/02"]) == ["2024/01/02"]


@pytest.mark.parametrize("value", ["..", ".", "a/../b", "/a", "a/", "a//b", ".hoodie", ".hoodie/x"])
def test_values_that_lead_out_of_their_directory_are_refused_by_name(value: str) -> None:
    with pytest.raises(
        UserError, match=r"1 of 2 rows have a value in 'p' that cannot form a partition path.* row 1"
    ) as caught:
        paths(["good", value])
    assert caught.value.facts["first"]["p"] == value


def test_hive_style_allows_dots_and_escaping_allows_slashes() -> None:
    assert paths([".."], hive_style=True) == ["p=.."]
    assert paths(["a/../b"], url_encode=True) == ["a%2F..%2Fb"]


def test_path_is_parsed_into_the_values_of_its_fields() -> None:
    assert parse_partition_path("a=1/b=x%2Fy", config("a", "b", hive_style=True, url_encode=True)) == ("1", "x/y")
    assert parse_partition_path(f"{DEFAULT_PARTITION}/x", config("a", "b")) == (None, "x")
    assert parse_partition_path("default", config("a")) == ("default",)
    assert parse_partition_path("2024/01/02", config("a")) == ("2024/01/02",)
    assert parse_partition_path("a=2024/01/b=x/y", config("a", "b", hive_style=True)) == ("2024/01", "x/y")


def test_path_that_does_not_fit_its_fields_is_refused() -> None:
    with pytest.raises(UserError, match=r"'x/y/z' has 3 levels; fields a, b need 2"):
        parse_partition_path("x/y/z", config("a", "b"))
    with pytest.raises(UserError, match=r"expected a=\.\.\. but found 'b=1'"):
        parse_partition_path("b=1", config("a", hive_style=True))
    with pytest.raises(UserError, match="without partition fields"):
        parse_partition_path("x", config())


def custom(**options: bool) -> KeyConfig:
    return KeyConfig(
        generator=KeyGeneratorType.CUSTOM,
        record_key_fields=("id",),
        partition_fields=("region", "at"),
        partition_types=("SIMPLE", "TIMESTAMP"),
        timestamp=TimestampFormat(type="UNIX_TIMESTAMP", output_format="yyyy/MM"),
        **options,
    )


def test_custom_generator_combines_plain_and_formatted_segments() -> None:
    data = pa.table({"id": [1, 2], "region": ["eu", None], "at": [1_700_000_000, None]})
    assert partition_paths(data, custom()).to_pylist() == ["eu/2023/11", f"{DEFAULT_PARTITION}/1970/01"]
    assert partition_paths(data, custom(hive_style=True))[0].as_py() == "region=eu/at=2023/11"
    assert partition_paths(data, custom(url_encode=True))[0].as_py() == "eu/2023%2F11"


def test_formatted_time_with_all_its_levels_is_one_value() -> None:
    assert parse_partition_path("eu/2023/11", custom()) == ("eu", "2023/11")
    assert parse_partition_path("region=eu/at=2023/11", custom(hive_style=True)) == ("eu", "2023/11")
    assert parse_partition_path("eu/2023%2F11", custom(url_encode=True)) == ("eu", "2023/11")


def test_times_out_of_range_are_refused_and_masked() -> None:
    data = pa.table({"id": [1, 2], "region": ["eu", "eu"], "at": [1_700_000_000, 1_700_000_000_000_000]})
    with pytest.raises(UserError, match=r"1 of 2 rows have a value in 'at' .* not a time between years 1 and 9999"):
        partition_paths(data, custom())
    assert bad_key_mask(data, custom()).to_pylist() == [False, True]
