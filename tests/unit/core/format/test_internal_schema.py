"""Schemas with column ids: the JSON of Apache Hudi, the ids that it assigns, and names of columns in old files."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lakehouse.core.format.internal_schema import (
    InternalSchema,
    all_columns,
    decode_history,
    decode_schema,
    encode_history,
    encode_schema,
    first_schema_with_ids,
)
from lakehouse.core.planning.schema_changes import (
    AddColumn,
    ChangeRules,
    ChangeType,
    DropColumn,
    MoveColumn,
    Place,
    RenameColumn,
    SchemaChange,
    apply_changes,
)
from lakehouse.core.planning.schema_history import SchemaHistory, keeps_statistics, reads_without_conversion
from lakehouse.core.rows.stored_names import by_current_names, is_evolved, statistics_name, stored_name
from lakehouse.errors import CorruptTableError

DATA = pa.schema(
    [
        ("id", pa.string()),
        ("a", pa.int32()),
        ("b", pa.string()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("l", pa.list_(pa.field("element", pa.int32()))),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("ts", pa.int64()),
    ]
)
#: The start of the schema that Apache Hudi 1.2 writes for these columns.
NESTED = (
    '{"id":8,"name":"s","optional":true,"type":{"type":"record","fields":[{"id":12,"name":"x","optional":true,'
    '"type":"int"},{"id":13,"name":"y","optional":true,"type":"string"}]}},{"id":9,"name":"l","optional":true,"type":'
    '{"type":"array","element_id":14,"element":"int","element_optional":true}},{"id":10,"name":"m","optional":true,'
    '"type":{"type":"map","key_id":15,"key":"string","value_id":16,"value":"int","value_optional":true}},'
    '{"id":11,"name":"ts","optional":true,"type":"long"}]}'
)


def changed(schema: InternalSchema, version: int, *changes: SchemaChange) -> InternalSchema:
    return apply_changes(schema, changes, ChangeRules(), version)


def ids(schema: InternalSchema) -> dict[str, int]:
    return {column.name: column.id for column in schema.data}


def test_first_ids_are_those_of_apache_hudi() -> None:
    schema = first_schema_with_ids(DATA)
    text = encode_schema(schema)
    assert text.startswith(
        '{"max_column_id":16,"version_id":0,"type":"record","fields":[{"id":0,"name":"_hoodie_commit_time",'
        '"optional":true,"type":"string","doc":""}'
    )
    assert text.endswith(NESTED)
    assert decode_schema(text) == schema


def test_history_is_stored_newest_first_and_decoded_oldest_first() -> None:
    first = first_schema_with_ids(DATA)
    second = changed(first, 7, RenameColumn("b", "bb"))
    data = encode_history([first, second])
    assert [schema["version_id"] for schema in json.loads(data)["schemas"]] == [7, 0]
    assert decode_history(data) == (first, second)


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us"),
        pa.timestamp("ms"),
        pa.binary(),
        pa.binary(5),
        pa.decimal128(12, 3),
        pa.list_(pa.struct([("v", pa.map_(pa.string(), pa.list_(pa.int64())))])),
    ],
)
def test_each_type_is_decoded_as_it_was_encoded(kind: pa.DataType) -> None:
    schema = first_schema_with_ids(pa.schema([("c", kind)]))
    assert decode_schema(encode_schema(schema)) == schema
    assert SchemaHistory((schema,)).schema().field("c").type == kind


@pytest.mark.parametrize("text", ["local-timestamp-micros", "LOCAL_TIMESTAMP_MICROS", "decimal_bytes(9, 2)", "uuid"])
def test_types_of_hudi_in_other_spellings_are_read(text: str) -> None:
    column = {"id": 5, "name": "c", "optional": True, "type": text}
    decode_schema(json.dumps({"type": "record", "fields": [column]}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"fields":[{}]}',
        '{"fields":[{"id":1,"name":"a","optional":true,"type":"number"}]}',
        '{"fields":[{"id":1,"name":"a","optional":true,"type":"int"},{"id":1,"name":"b","optional":true,"type":"int"}]}',
    ],
)
def test_malformed_schema_is_reported(text: str) -> None:
    with pytest.raises(CorruptTableError, match="column ids"):
        decode_schema(text)


def test_changes_keep_ids_and_additions_get_new_ones() -> None:
    first = first_schema_with_ids(DATA)
    moved = changed(first, 1, RenameColumn("b", "bb"), MoveColumn("bb", Place(first=True)), ChangeType("a", pa.int64()))
    assert list(ids(moved)) == ["bb", "id", "a", "s", "l", "m", "ts"]
    assert ids(moved)["bb"] == ids(first)["b"] and ids(moved)["a"] == ids(first)["a"]
    again = changed(moved, 2, DropColumn("a"), AddColumn("a", pa.struct([("p", pa.int32()), ("q", pa.int32())])))
    assert ids(again)["a"] == 17 and again.max_id == 19
    inside = changed(again, 3, AddColumn("s.z", pa.string(), place=Place(after="x")))
    assert [column.name for _, column in all_columns(inside.columns) if column.id in (12, 13, 20)] == ["x", "z", "y"]


def test_write_gives_ids_to_new_columns_and_keeps_the_version_without_changes() -> None:
    history = SchemaHistory((first_schema_with_ids(DATA),))
    assert history.after(DATA, 9) is history.latest
    wider = DATA.append(pa.field("new", pa.struct([("k", pa.int64())]))).set(1, pa.field("a", pa.int64()))
    after = history.after(wider, 9)
    assert (after.version, after.max_id, ids(after)["new"]) == (9, 18, 17)
    assert ids(after)["a"] == ids(history.latest)["a"]


def test_names_in_files_follow_the_ids() -> None:
    first = first_schema_with_ids(DATA)
    second = changed(first, 10, RenameColumn("b", "bb"), DropColumn("a"))
    third = changed(second, 20, AddColumn("a", pa.string()), RenameColumn("s.x", "z"), ChangeType("ts", pa.string()))
    schema = SchemaHistory((first, second, third)).schema()
    assert [stored_name(schema.field("bb"), instant) for instant in ("9", "10", "25")] == ["b", "bb", "bb"]
    assert [stored_name(schema.field("a"), instant) for instant in ("9", "19", "20")] == [None, None, "a"]
    assert [statistics_name(schema.field("ts"), instant) for instant in ("9", "20")] == [None, "ts"]
    assert {field.name for field in schema if is_evolved(field)} == {"a", "bb", "s", "ts"}
    assert SchemaHistory((first, second, third)).evolved >= {"a", "b", "bb", "s", "ts"}
    rows = pa.table({"a": [1], "b": ["v"], "s": [{"x": 3, "y": "q"}]})
    current = by_current_names(rows, schema, "9")
    assert current.to_pylist() == [{"bb": "v", "s": {"z": 3, "y": "q"}}]


@pytest.mark.parametrize(
    ("path", "kind", "for_spark_3", "for_others"),
    [
        ("a", pa.int64(), 20, 0),
        ("a", pa.string(), 20, 20),
        ("s.x", pa.int64(), 20, 0),
        ("l.element", pa.string(), 20, 20),
        ("d", pa.decimal128(12, 2), 0, 0),
        ("d", pa.decimal128(14, 4), 20, 0),
    ],
)
def test_newest_change_of_a_type_depends_on_the_types_that_readers_convert(
    path: str, kind: pa.DataType, for_spark_3: int, for_others: int
) -> None:
    """Spark 3.5 fails at INT32 in a column of longs, and at decimals of another scale."""
    first = first_schema_with_ids(DATA.append(pa.field("d", pa.decimal128(10, 2))))
    second = changed(first, 10, RenameColumn("b", "bb"), AddColumn("new", pa.int32()))
    third = changed(second, 20, ChangeType(path, kind))
    history = SchemaHistory((first, second, third, changed(third, 30, DropColumn("m"))))
    assert history.retyped(reads_without_conversion) == for_spark_3
    assert history.retyped(keeps_statistics) == for_others
    dropped = changed(third, 40, DropColumn(path.split(".", maxsplit=1)[0]))
    assert SchemaHistory((first, second, third, dropped)).retyped(keeps_statistics) == 0


def test_history_up_to_a_version_ends_with_it() -> None:
    first = first_schema_with_ids(DATA)
    history = SchemaHistory((first, changed(first, 10, RenameColumn("b", "bb"))))
    assert history.at(9).latest == first and history.at(10) == history.at(99) == history
