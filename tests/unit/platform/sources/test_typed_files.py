"""Types of ORC and Avro that Spark lacks are read as those that it has, also inside of other types."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.errors import UserError
from lakehouse.spark.typed_files import typed_batches, typed_schema
from tests.support.typed_files import typed_file

STORE = MemoryStorage("memory://typed-files")
AT = datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)
OPENS = {"type": "int", "logicalType": "time-millis"}
FIELDS: dict[str, tuple[Any, Any, pa.DataType, Any]] = {
    "opens": (OPENS, time(0, 0, 1, 5000), pa.int32(), 1005),
    "closes": ({"type": "long", "logicalType": "time-micros"}, time(0, 0, 1, 5), pa.int64(), 1_000_005),
    "at": ({"type": "long", "logicalType": "timestamp-micros"}, AT, pa.timestamp("us", "UTC"), AT),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        datetime(2026, 1, 31, 9, 30),
        pa.timestamp("us"),
        datetime(2026, 1, 31, 9, 30),
    ),
    "day": ({"type": "int", "logicalType": "date"}, date(1, 1, 1), pa.date32(), date(1, 1, 1)),
    "mark": ({"type": "fixed", "name": "Mark", "size": 2}, b"\x00\xff", pa.binary(), b"\x00\xff"),
    "sum": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
        Decimal("-1.0000000001"),
        pa.decimal128(38, 10),
        Decimal("-1.0000000001"),
    ),
    "list": ({"type": "array", "items": OPENS}, [time(0, 0, 2)], pa.list_(pa.int32()), [2000]),
    "map": ({"type": "map", "values": OPENS}, {"a": time(0, 0, 2)}, pa.map_(pa.string(), pa.int32()), [("a", 2000)]),
    "row": (
        {"type": "record", "name": "Row", "fields": [{"name": "opens", "type": ["null", OPENS]}]},
        {"opens": None},
        pa.struct([("opens", pa.int32())]),
        {"opens": None},
    ),
}


def read(format: str, data: bytes) -> pa.Table:
    """Return the rows of a file."""
    STORE.put(f"a.{format}", data)
    schema = typed_schema(STORE, f"a.{format}", format)
    table = pa.Table.from_batches(typed_batches(STORE, f"a.{format}", format))
    assert [(one.name, one.type) for one in table.schema] == [(one.name, one.type) for one in schema]
    return table


def test_logical_types_of_avro_become_types_of_spark() -> None:
    fields = [{"name": name, "type": ["null", declared[0]]} for name, declared in FIELDS.items()]
    out = io.BytesIO()
    rows = [{name: declared[1] for name, declared in FIELDS.items()}, dict.fromkeys(FIELDS)]
    fastavro.writer(out, {"type": "record", "name": "R", "fields": fields}, rows)
    table = read("avro", out.getvalue())
    assert {one.name: one.type for one in table.schema} == {name: declared[2] for name, declared in FIELDS.items()}
    assert table.to_pylist() == [{name: declared[3] for name, declared in FIELDS.items()}, dict.fromkeys(FIELDS)]


def test_times_of_orc_have_microseconds() -> None:
    nanos = pa.array(np.array([1_000_000_001, None], "O"), pa.int64()).cast(pa.timestamp("ns"))
    table = pa.table({"at": nanos, "inside": pa.array([{"at": 1_999}, None], pa.struct([("at", pa.timestamp("ns"))]))})
    found = read("orc", typed_file(table, "orc"))
    micros = pa.timestamp("us")
    assert found.column("at").to_pylist() == pa.array([1_000_000, None]).cast(micros).to_pylist()
    assert found.column("inside").to_pylist() == [{"at": pa.scalar(1, micros).as_py()}, None]


def test_damaged_files_are_named() -> None:
    whole = typed_file(pa.table({"id": list(range(100))}), "orc")
    for data in (whole[:-20], whole[:50] + b"\xff" * 60 + whole[110:]):
        with pytest.raises(UserError, match=r"memory://typed-files/a\.orc cannot be read as orc"):
            read("orc", data)
