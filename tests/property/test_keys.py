"""Record keys, partition paths and buckets equal plain Python references, and encoded values round-trip."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse.core.format.java_hash import string_hashes
from lakehouse.core.index.hash.bucket import bucket_file_id, bucket_ids, bucket_of
from lakehouse.core.rows.joda_patterns import compile_pattern, parse, render
from lakehouse.core.rows.key_values import value_text
from lakehouse.core.rows.keys import bad_key_mask, partition_paths, record_keys
from lakehouse.core.rows.partition_path import escape, parse_partition_path, unescape
from lakehouse.model.keys import KeyConfig, KeyGeneratorType

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.lists(st.none() | TEXT, max_size=20)
# Values that need no escaping in a path: without '/', and not a name with a special meaning.
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1).filter(
    lambda text: text not in (".", "..", ".hoodie", "__HIVE_DEFAULT_PARTITION__")
)


def java_hash(text: str) -> int:
    units = text.encode("utf-16-le")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[index : index + 2], "little")) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def java_list_hash(hashes: list[int]) -> int:
    code = 1
    for value in hashes:
        code = (31 * code + value) & 0xFFFFFFFF
    return code


@given(VALUES, st.integers(0, 3))
def test_string_hashes_equal_the_java_reference(values: list[str | None], start: int) -> None:
    strings = pa.array(values, pa.string()).slice(start)
    assert string_hashes(strings).tolist() == [0 if value is None else java_hash(value) for value in values[start:]]


@given(st.lists(TEXT, max_size=10), st.integers(1, 5000))
def test_buckets_of_simple_keys_equal_the_reference(keys: list[str], buckets: int) -> None:
    found = bucket_ids(pa.array(keys, pa.string()), key_fields=("id",), hash_fields=(), buckets=buckets)
    assert found.tolist() == [(java_list_hash([java_hash(key)]) & 0x7FFFFFFF) % buckets for key in keys]


@given(
    st.lists(st.tuples(st.none() | st.text("ab:ż", max_size=3), st.integers()), min_size=1, max_size=10),
    st.integers(1, 500),
)
def test_buckets_of_complex_keys_equal_the_reference(rows: list[tuple[str | None, int]], buckets: int) -> None:
    config = KeyConfig(generator=KeyGeneratorType.COMPLEX, record_key_fields=("a", "b"))
    data = pa.table({"a": pa.array([row[0] for row in rows]), "b": pa.array([str(row[1]) for row in rows])})
    keys = record_keys(data, config)
    found = bucket_ids(keys, key_fields=("a", "b"), hash_fields=("a", "b"), buckets=buckets)
    expected = [(java_list_hash([java_hash(a or ""), java_hash(str(b))]) & 0x7FFFFFFF) % buckets for a, b in rows]
    assert found.tolist() == expected


@given(st.integers(0, 99_999_999), st.uuids())
def test_bucket_round_trips_through_its_file_id(bucket: int, uuid: object) -> None:
    assert bucket_of(bucket_file_id(bucket, str(uuid))) == bucket


@given(TEXT)
def test_escaped_value_round_trips_and_is_one_path_level(value: str) -> None:
    assert unescape(escape(value)) == value
    assert "/" not in escape(value)


def partitioned(*, hive_style: bool, url_encode: bool) -> KeyConfig:
    return KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("a",),
        partition_fields=("a", "b"),
        partition_types=("SIMPLE", "SIMPLE"),
        hive_style=hive_style,
        url_encode=url_encode,
    )


@given(st.lists(st.tuples(st.none() | PLAIN, st.none() | PLAIN), max_size=10), st.booleans(), st.booleans())
def test_partition_values_round_trip_through_the_partition_path(
    rows: list[tuple[str | None, str | None]], hive_style: bool, url_encode: bool
) -> None:
    config = partitioned(hive_style=hive_style, url_encode=url_encode)
    columns = [pa.array([row[index] for row in rows], pa.string()) for index in range(2)]
    paths = partition_paths(pa.table(columns, names=["a", "b"]), config).to_pylist()
    assert [parse_partition_path(path, config) for path in paths] == rows


@given(st.lists(st.tuples(st.none() | st.sampled_from(["", "x", ".."]), st.none() | TEXT), min_size=1, max_size=10))
def test_rows_outside_the_bad_key_mask_have_keys_and_paths(rows: list[tuple[str | None, str | None]]) -> None:
    config = partitioned(hive_style=False, url_encode=False)
    columns = [pa.array([row[index] for row in rows], pa.string()) for index in range(2)]
    data = pa.table(columns, names=["a", "b"])
    good = data.filter([not bad for bad in bad_key_mask(data, config).to_pylist()])
    assert record_keys(good, config).null_count == 0
    assert partition_paths(good, config).null_count == 0


@given(st.lists(st.floats(allow_nan=False), max_size=10))
@example([1e-3, 1e7, 5e-324, -0.0, 9.999999999999999e-4, 9999999.999999998])
def test_float_round_trips_through_its_java_text(values: list[float]) -> None:
    texts = value_text(pa.array(values, pa.float64()), name="x").to_pylist()
    assert [float(text.replace("Infinity", "inf")) for text in texts] == values
    for value, text in zip(values, texts, strict=True):
        is_plain = value == 0 or 1e-3 <= abs(value) < 1e7 or "Infinity" in text
        assert ("E" in text) is not is_plain
        assert "." in text or "Infinity" in text


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_time_round_trips_through_its_rendered_text(millis: int) -> None:
    pattern = compile_pattern("EEE, d MMMM yyyy hh:mm:ss.SSS a")
    found = parse(pattern, render(pattern, millis))
    assert found is not None and found.local_ms == millis
