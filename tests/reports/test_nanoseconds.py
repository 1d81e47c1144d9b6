"""Times in nanoseconds, which tables store in microseconds."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import orc

from lakehouse.core.format.avro.conform import conformed
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.model.keys import TimestampFormat
from lakehouse.spark.typed_files import typed_batches
from tests.support.tables import make_env

NANOS = [1_999, -1, -1_000, -1_001, None, 1_000, 0, 1_700_000_000_123_456_789, -(2**63) + 1]
MICROS = [None if value is None else value // 1_000 for value in NANOS]
#: Rows that lose digits.
CUT = 5
ZONES = [None, "UTC", "Europe/Berlin"]


def created(**declared: Any) -> Table:
    """Return a new table in memory."""
    env = make_env()
    return Table.create(env.storage.root, name="t", record_key="id", env=env, **declared)


def times(zone: str | None = None) -> pa.Array:
    """Return the times in nanoseconds."""
    return pa.array(NANOS, pa.int64()).cast(pa.timestamp("ns", zone))


def nested(kind: str) -> pa.Array:
    """Return the times inside of a column of this kind."""
    if kind == "struct":
        return pa.StructArray.from_arrays([times()], names=["at"])
    offsets = pa.array(range(len(NANOS) + 1), pa.int32())
    if kind == "list":
        return pa.ListArray.from_arrays(offsets, times())
    if kind == "map":
        return pa.MapArray.from_arrays(offsets, pa.repeat("k", len(NANOS)), times())
    return times().dictionary_encode()


LEAVES = {"struct": "v.at", "list": "v.element", "map": "v.value", "dictionary": "v"}


def batch(values: pa.Array) -> pa.Table:
    """Return a batch with the values in column `v`."""
    return pa.table({"id": [f"{number:02}" for number in range(len(values))], "v": values})


def rounded(column: str, rows: int = CUT) -> tuple[ColumnDrift, ...]:
    """Return the drift of a column whose times lost digits."""
    return (ColumnDrift(column=column, change=Drift.ROUNDED, rows=rows, before="timestamp[ns]", after="timestamp[us]"),)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("verb", ["upsert", "insert", "bulk_insert", "insert_overwrite"])
def test_writes_cut_nanoseconds_towards_the_past_and_count_the_rows(verb: str, zone: str | None) -> None:
    """apache/iceberg-go#1586, huggingface/datasets#8391, apache/arrow#6536: digits of times vanish without a word."""
    table = created()
    outcome = getattr(table, verb)(batch(times(zone)))
    assert outcome.drift == rounded("v")
    stored = table.scan(["id", "v"]).to_arrow().sort_by("id").column("v")
    assert stored.type == pa.timestamp("us", zone and "UTC")
    assert stored.cast(pa.int64()).to_pylist() == MICROS


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_nested_times_are_cut_and_counted_by_their_path(kind: str, table_type: str) -> None:
    """apache/arrow#6536: the same rule inside of structs, lists, maps and dictionaries."""
    table = created(table_type=table_type)
    for _ in range(2):
        rows = batch(nested(kind))
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=2))
        assert table.upsert(reader).drift == rounded(LEAVES[kind])
    stored = table.scan(["id", "v"]).to_arrow().sort_by("id").column("v").combine_chunks()
    if kind == "struct":
        stored = stored.field("at")
    elif kind in ("list", "map"):
        stored = stored.items if kind == "map" else stored.flatten()
    assert stored.cast(pa.int64()).to_pylist() == MICROS


def test_times_without_lost_digits_and_columns_that_are_not_stored_count_nothing() -> None:
    """apache/iceberg-python#840: most times in nanoseconds come from libraries whose default unit it is."""
    table = created()
    exact = pa.array([1_000, None, -5_000], pa.int64()).cast(pa.timestamp("ns"))
    assert table.upsert(batch(exact)).drift == ()
    ignoring = table.with_options({"lakehouse.schema.new.column": "ignore"})
    outcome = ignoring.upsert(
        batch(exact).append_column("new", pa.array([1, 2, 3], pa.int64()).cast(pa.timestamp("ns")))
    )
    assert [(one.column, one.change) for one in outcome.drift] == [("new", Drift.IGNORED)]


def test_keys_and_partitions_in_nanoseconds_are_those_of_the_stored_time() -> None:
    """huggingface/datasets#8391: an update with the stored microseconds finds the row that nanoseconds wrote."""
    table = Table.create(
        "memory://",
        name="t",
        record_key="at",
        partition_by="day:TIMESTAMP",
        timestamp=TimestampFormat(type="EPOCHMICROSECONDS", output_format="yyyy-MM-dd"),
        env=make_env(),
    )
    nanos = pa.array([-1, -86_400_000_000_001], pa.int64()).cast(pa.timestamp("ns"))
    table.upsert(pa.table({"at": nanos, "day": nanos, "n": [1, 2]}))
    micros = pa.array([-1, -86_400_000_001], pa.int64()).cast(pa.timestamp("us"))
    table.upsert(pa.table({"at": micros, "day": micros, "n": [3, 4]}))
    stored = table.scan(["n", "_hoodie_partition_path"]).to_arrow().sort_by("n").to_pylist()
    # As in Hudi, microseconds become milliseconds towards zero in partition paths.
    assert [(row["n"], row["_hoodie_partition_path"]) for row in stored] == [(3, "1970-01-01"), (4, "1969-12-31")]


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.duration("ns"), pa.duration("us")], ids=str)
def test_types_without_a_counterpart_are_refused_with_the_column(kind: pa.DataType) -> None:
    """huggingface/datasets#8391: durations and times of day in nanoseconds have no type in a table."""
    table = created()
    with pytest.raises(UserError, match=r"column 'v' has type .*, which a Hudi table cannot store; cast it first"):
        table.upsert(batch(pa.array([1, 2], pa.int64()).cast(kind)))
    assert not list(table.timeline)


def test_files_and_messages_cut_nanoseconds_as_writes_do(tmp_path: Any) -> None:
    """apache/iceberg-go#1586, duckdb/duckdb#15289: one rule for all sources, also before 1970."""
    rows = pa.table({"at": times().drop_null(), "s": nested("struct").filter(pc.is_valid(times()))})
    sink = io.BytesIO()
    # ORC has no times as early as the first nanosecond that Arrow has.
    late = rows.filter(pc.greater(rows.column("at").cast(pa.int64()), -(2**62)))
    orc.write_table(late, sink)
    (tmp_path / "rows.orc").write_bytes(sink.getvalue())
    read = pa.Table.from_batches(typed_batches(open_storage(str(tmp_path)), "rows.orc", "orc"))
    expected = [value for value in MICROS if value is not None and value > -(2**52)]
    assert read.column("at").cast(pa.int64()).to_pylist() == expected
    assert pc.struct_field(read.column("s"), "at").cast(pa.int64()).to_pylist() == expected

    numbers = pa.array(NANOS, pa.int64())
    declared = {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}
    assert conformed(numbers, pa.timestamp("us"), declared, {}).cast(pa.int64()).to_pylist() == MICROS


def test_pandas_like_times_of_numpy_keep_microseconds() -> None:
    """mage-ai/mage-ai#3362: arrays of numpy are in nanoseconds; their microseconds are stored exactly."""
    table = created()
    moments = np.array(["1969-12-31T23:59:59.999999", "2262-04-11T23:47:16.854775"], "datetime64[ns]")
    assert table.upsert(batch(pa.array(moments))).drift == ()
    stored = table.scan(["id", "v"]).to_arrow().sort_by("id").column("v").to_pylist()
    assert stored == [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2262, 4, 11, 23, 47, 16, 854775)]
