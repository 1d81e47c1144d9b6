"""JSON values are parsed by Arrow one record for each value, and the fields that no column takes are collected."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.platform.sources.files.json_values import JsonDecoder, JsonParser
from lakehouse.platform.sources.unread_fields import MOST_NAMES, OTHERS, UnreadField, common_type, merged, with_fields
from lakehouse.spark.messages import MESSAGES

ORDER = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("fare", pa.decimal128(12, 2)),
        ("place", pa.struct([("x", pa.float64())])),
        ("items", pa.list_(pa.struct([("sku", pa.string())]))),
    ]
)
LARGE = pa.struct([("id", pa.int64()), ("raw", pa.binary())])


def parsed(parser: JsonParser, *values: object) -> list[Any]:
    """Parse values; text and bytes are not encoded."""
    texts = [one if isinstance(one, bytes | None) else (one if isinstance(one, str) else json.dumps(one)).encode()
             for one in values]  # fmt: skip
    result = parser.parsed(pa.array(texts, pa.binary()))
    result.validate(full=True)
    return result.to_pylist()


def unread(parser: JsonParser) -> dict[str, tuple[int, str]]:
    """Return number and example of the fields that were not read, by name."""
    return {one.name: (one.records, one.example) for one in merged([parser.take_unread()])}


def test_values_of_all_types_become_records() -> None:
    value = (
        '{"id": 7, "name": "\\u00e4\\"", "at": "2026-01-01T10:30:00.5+01:00", "day": "1999-12-31", "fare": 1.50, '
        '"place": {"x": 1}, "items": [{"sku": "a"}, null]}'
    )
    empty = dict.fromkeys(ORDER.names)
    assert parsed(JsonParser(ORDER), value, {}, {"place": {}, "items": []}) == [
        {
            "id": 7,
            "name": 'ä"',
            "at": datetime(2026, 1, 1, 9, 30, 0, 500_000, tzinfo=UTC),
            "day": date(1999, 12, 31),
            "fare": Decimal("1.50"),
            "place": {"x": 1.0},
            "items": [{"sku": "a"}, None],
        },
        empty,
        empty | {"place": {"x": None}, "items": []},
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"null",
        b"[1]",
        b"5",
        b'{"id": 1',
        b'{"id": 1} x',
        b'{"id": 1}, "other": 2',
        b'{"id": 1}} {"record": {"id": 2}',
        b'{"id": 1}, "record": {"id": 2}',
        b'{"id": "x"}',
        b'{"id": 1, "id": 2}',
        b'{"name": 5}',
        b'{"name": "\xff"}',
        b'{"name": "a\nb"}',
        b'{\n"id": 1\n}',
        b'{"at": "2026-01-01 10:00"}',
        b'{"at": "2026-01-01T10:00:00"}',
        b'{"at": 1}',
        b'{"fare": 1.234}',
    ],
)
def test_value_in_another_form_is_left_to_spark_and_moves_no_other_record(value: bytes | None) -> None:
    others = [{"id": number} for number in range(600)]
    given = [*others[:300], value, *others[300:]]
    found = parsed(JsonParser(pa.struct([*ORDER])), *given)
    assert len(found) == 601
    assert found[300] is None
    # Only the small piece with the refused value is left to Spark, too.
    numbers = [None if one is None else one["id"] for one in found]
    expected = [*range(300), None, *range(300, 600)]
    assert all(one is None or one == wanted for one, wanted in zip(numbers, expected, strict=True))
    assert sum(one is None for one in numbers) <= 256


@given(st.lists(st.sampled_from([b'{"id":%d}', b'{"id":%d}}', b'{"id":%d', b'{"id":%d,"n":"', b'"x":%d}', b"%d", b"}{",
                                 b'{"id":%d}} {"record":{"id":0}', b"", b'{"id":%d,"u":1}']), max_size=12))  # fmt: skip
def test_broken_values_beside_each_other_never_become_one_record(pieces: list[bytes]) -> None:
    values = [piece % number if b"%d" in piece else piece for number, piece in enumerate(pieces)]
    target = pa.struct([("id", pa.int64())])
    found = [one for value in values for one in parsed(JsonParser(target), value)]
    together = parsed(JsonParser(target), *values)
    assert len(together) == len(values)
    for number, (value, alone, one) in enumerate(zip(values, found, together, strict=True)):
        try:
            record = json.loads(value)
        except ValueError:
            record = None
        expected = {"id": number} if isinstance(record, dict) else None
        assert alone == expected
        assert one in (None, expected)


def test_fields_that_no_column_takes_are_counted_with_examples() -> None:
    parser = JsonParser(ORDER)
    found = parsed(
        parser,
        {"id": 1, "vat": 0.2, "place": {"x": 1, "y": 2}, "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]},
        {"id": 2, "vat": "free", "gone": None},
        {"id": 3, "when": "2026-01-01T00:00:00Z", "items": [{"n": 3}]},
        '{"id": "bad", "vat": 1}',
    )
    assert [one and one["id"] for one in found][:3] in ([1, 2, 3], [None, None, None])
    fields = merged([parser.take_unread()])
    assert {one.name: one.records for one in fields} == {
        "vat": 3,
        "place.y": 1,
        "items.element.n": 2,
        "when": 1,
    }
    types = {one.name: one.type for one in fields}
    assert types == {
        "vat": pa.string(),
        "place.y": pa.int64(),
        "items.element.n": pa.int64(),
        "when": pa.string(),
    }
    assert {one.name: one.example for one in fields}["when"] == '"2026-01-01T00:00:00Z"'
    assert parser.take_unread() is None


def test_fields_are_found_by_arrow_and_one_by_one_equally() -> None:
    records = [{"id": n, "a": n, "place": {"y": "t"}, "items": [{"q": n}, {"q": 1, "r": True}]} for n in range(1, 9)]
    together, single = JsonParser(ORDER), JsonParser(ORDER)
    parsed(together, *records)
    parsed(single, *records, "not JSON")
    assert [(one.name, one.records, one.type) for one in merged([together.take_unread()])] == [
        (one.name, one.records, one.type) for one in merged([single.take_unread()])
    ]


def test_fields_are_collected_if_a_column_has_a_type_that_arrow_does_not_read() -> None:
    parser = JsonParser(LARGE)
    assert parsed(parser, {"id": 1, "raw": "YQ==", "x": 1}) == [None]
    assert unread(parser) == {"x": (1, "1")}


def test_rows_of_change_events_are_searched_at_the_first_path_with_an_object() -> None:
    paths = (("after",), ("before",), ("payload", "after"), ("payload", "before"))
    row = pa.struct([("id", pa.int64())])
    parser = JsonParser(row, paths, parses=False)
    events: list[object] = [
        {"op": "u", "before": {"id": 1, "x": 1}, "after": {"id": 1, "x": 2}, "source": {"other": 1}},
        {"op": "d", "before": {"id": 1, "x": 3}, "after": None},
        {"schema": {"fields": []}, "payload": {"before": None, "after": {"id": 1, "y": 2}}},
    ]
    parsed(parser, *events)
    assert {name: records for name, (records, _) in unread(parser).items()} == {"x": 2, "y": 1}
    parsed(parser, *events, "broken")
    assert {name: records for name, (records, _) in unread(parser).items()} == {"x": 2, "y": 1}


def test_names_that_are_data_are_counted_together() -> None:
    parser = JsonParser(pa.struct([("id", pa.int64())]))
    parsed(parser, *({"id": 1, f"k{number:04}": 1} for number in range(MOST_NAMES + 50)))
    fields = merged([parser.take_unread()])
    assert len(fields) == MOST_NAMES + 1
    assert {one.path: one.records for one in fields}[OTHERS] == 50


def test_new_fields_extend_the_type_of_a_record() -> None:
    fields = [
        UnreadField(path=("place", "y"), records=1, example="1", type=pa.int64()),
        UnreadField(path=("items", "element", "n"), records=1, example="1", type=pa.string()),
        UnreadField(path=("a.b",), records=1, example="1", type=pa.bool_()),
    ]
    target = pa.struct([ORDER.field("place"), ORDER.field("items")])
    assert with_fields(target, fields) == pa.struct(
        [
            ("place", pa.struct([("x", pa.float64()), ("y", pa.int64())])),
            ("items", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.string())]))),
            ("a.b", pa.bool_()),
        ]
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int64(), pa.string(), pa.string()),
        (pa.null(), pa.bool_(), pa.bool_()),
        (pa.list_(pa.int64()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int64()), pa.int64(), pa.string()),
        (
            pa.struct([("a", pa.int64())]),
            pa.struct([("b", pa.bool_())]),
            pa.struct([("a", pa.int64()), ("b", pa.bool_())]),
        ),
    ],
)
def test_common_type_holds_the_values_of_both(one: pa.DataType, other: pa.DataType, expected: pa.DataType) -> None:
    assert common_type(one, other) == expected


def test_decoder_reports_fields_at_the_end_of_a_range_and_skips_messages_outside_of_the_interval() -> None:
    def batch(times: list[int | None], values: list[bytes | None], is_end: bool) -> pa.RecordBatch:
        moments = [None if time is None else datetime.fromtimestamp(time, UTC) for time in times]
        nothing = dict.fromkeys(MESSAGES.names)
        rows = [
            nothing | {"time": moment, "value": value, "is_end": is_end}
            for moment, value in zip(moments, values, strict=True)
        ]
        return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)

    row = pa.struct([("id", pa.int64())])
    batches = [
        batch([1, 2, 3], [b'{"id":1,"a":1}', b'{"id":2,"b":1}', b'{"id":3,"c":1}'], False),
        batch([None], [None], True),
    ]
    decoder = JsonDecoder(messages=lambda given: given, target=row, interval_ms=(2000, 3000))
    first, end = decoder(batches)
    assert first.column("record").to_pylist() == [None, {"id": 2}, None]
    assert first.column("unread").null_count == 3
    assert [one.name for one in merged(end.column("unread").to_pylist())] == ["b"]
