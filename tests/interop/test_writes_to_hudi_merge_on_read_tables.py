"""Merge-on-read tables of Apache Hudi: lakehouse reads, writes and compacts them, and Hudi uses them afterwards."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.format.log.blocks import BlockHeader, BlockType
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec
from tests.interop.agreement import assert_hudi_reads_the_same, assert_same
from tests.interop.mor_tables import (
    BUCKETS,
    HUDI_OPTIONS,
    ORDERED,
    PARQUET_LOGS,
    PARTITIONED,
    STAYS_AT_8,
    WITHOUT_FLAG,
    assert_same_read_optimized,
    blocks,
    inserted,
    values,
)
from tests.interop.rows import EVERYTHING, everything_writable, nothing
from tests.support import hudi_rs
from tests.support.file_ingest import file_ingest
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, batch, row

pytestmark = pytest.mark.jvm

Options = dict[str, str]
COMMIT_TIME = {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"}
TABLES: dict[str, Options] = {
    "avro": ORDERED,
    "parquet": ORDERED | PARQUET_LOGS,
    "avro-8": ORDERED | STAYS_AT_8,
    "commit-time": COMMIT_TIME,
    "bucket": ORDERED | BUCKETS,
}
DELETE = {"hoodie.datasource.write.operation": "delete"}
# In a bucket, MERGE INTO writes an inserted row to a partial block, which Hudi reads incorrectly.
MERGE = (
    "MERGE INTO {{table}} t USING (SELECT 'k8' id, 'c' p, {ts}L ts, 'merged' v{new}) s ON t.id = s.id AND t.p = s.p "
    "WHEN MATCHED THEN UPDATE SET t.v = s.v, t.ts = s.ts WHEN NOT MATCHED THEN "
    "INSERT (id, region, p, at, ts, v, amount) VALUES (s.id, 'eu', s.p, 0L, s.ts, s.v, 0.0D)"
)
NEW = " UNION ALL SELECT 'm{turn}', 'b', {ts}L, 'merged'"


def settings(options: Options) -> dict[str, str]:
    """Return options of Hudi's writer as SQL settings; SQL takes the ordering column from the table."""
    wanted = {k: v for k, v in options.items() if not k.startswith("hoodie.datasource")}
    return {key.replace(".", "__"): value for key, value in (wanted | {"hoodie.metadata.enable": "false"}).items()}


@pytest.mark.parametrize("name", TABLES)
def test_hudi_and_lakehouse_write_a_hudi_table_in_turn(name: str, hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), HUDI_OPTIONS | PARTITIONED | TABLES[name]
    first = inserted()
    hudi.write(location, batch(first, WITHOUT_FLAG), options, mode="overwrite")
    table = Table.open(location, options=BUCKETS if name == "bucket" else {})
    expected = {r["id"]: r["v"] for r in first}

    def agree() -> None:
        assert values(table) == expected
        assert_hudi_reads_the_same(hudi, table)

    rounds = 3 if name in ("avro", "parquet") else 2
    for turn in range(rounds):
        ts = 10 * (turn + 1)
        late = first[1] | {"ts": 4, "v": f"late {turn}"}
        theirs = [first[0] | {"ts": ts, "v": f"theirs {turn}"}, late, row(f"t{turn}", p="a", v="new")]
        hudi.write(location, batch(theirs, WITHOUT_FLAG), options)
        expected |= {"k0": f"theirs {turn}", f"t{turn}": "new"}
        if name == "commit-time":
            expected["k1"] = f"late {turn}"
        new = NEW.format(ts=ts, turn=turn) if name != "bucket" else ""
        hudi.sql(MERGE.format(ts=ts, new=new), table=location, **settings(TABLES[name]))
        expected |= {"k8": "merged"} | ({f"m{turn}": "merged"} if new else {})
        if turn == rounds - 2:
            hudi.sql("DELETE FROM {table} WHERE id = 'k7'", table=location, **settings(TABLES[name]))
            hudi.write(location, batch([first[4]], WITHOUT_FLAG), options | DELETE)
            expected = {key: v for key, v in expected.items() if key not in ("k4", "k7")}
        agree()
        ours = [first[0] | {"ts": ts + 1, "v": "ours"}, first[7] | {"ts": ts + 1, "v": "back"}, row(f"o{turn}", p="b")]
        table.upsert(batch(ours, WITHOUT_FLAG))
        expected |= {"k0": "ours", "k7": "back", f"o{turn}": None}
        table.delete(batch([row(f"t{turn}", p="a")]).select(["id", "p"]))
        del expected[f"t{turn}"]
        if turn == rounds - 2:
            table.services.compaction.run(force=True)
            assert_same_read_optimized(hudi, table)
        agree()
    kinds = {block.kind for block in blocks(table)}
    assert (BlockType.AVRO_DATA in kinds) == (name != "parquet") and {BlockType.DELETE, BlockType.PARQUET_DATA} <= kinds
    assert any(block.is_partial for block in blocks(table))
    assert table.refresh().config.version == (8 if name == "avro-8" else 9)


MODEL = "org.apache.hudi.common.model."
DMS = pa.schema([("id", pa.string()), ("Op", pa.string()), ("ts", pa.int64()), ("v", pa.string())])
LSN = pa.schema(
    [("id", pa.string()), ("_event_lsn", pa.int64()), ("_change_operation_type", pa.string()), ("v", pa.string())]
)
SPARSE = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
TOAST = "__debezium_unavailable_value"
#: Payload class, columns, ordering columns, batches and final rows. Hudi writes batches 0, 1 and 3, lakehouse 2 and 4.
Values = list[tuple[Any, ...]]
PAYLOADS: dict[str, tuple[str, pa.Schema, str, list[Values], Values]] = {
    "OverwriteNonDefaultsWithLatest": (
        "OverwriteNonDefaultsWithLatestAvroPayload",
        SPARSE,
        "ts",
        [
            [("a", 5, "a", 1), ("b", 5, "b", 2), ("c", 5, "c", 3)],
            [("a", 6, None, 7), ("b", 4, "late", None), ("c", 4, None, 9)],
            [("a", 9, None, 10), ("b", 9, "ours", None), ("d", 1, "d", None)],
            [("a", 7, "x", None), ("c", 8, None, None)],
            [("d", 2, None, 5)],
        ],
        [("a", 7, "x", 10), ("b", 9, "ours", 2), ("c", 8, "c", 9), ("d", 2, "d", 5)],
    ),
    "PartialUpdate": (
        "PartialUpdateAvroPayload",
        SPARSE,
        "ts",
        [
            [("a", 5, "a", 1), ("b", 5, "b", None), ("c", 5, "c", 3)],
            [("a", 6, None, 7), ("b", 4, "late", 2), ("c", 4, None, 9)],
            [("a", 9, None, 10), ("d", 1, "d", None)],
            [("a", 7, "x", None), ("c", 8, None, None)],
            [("d", 2, None, 5), ("a", 8, "late", 0)],
        ],
        # The late rows of a and c change nothing, as in a copy-on-write table.
        [("a", 9, "a", 10), ("b", 5, "b", 2), ("c", 8, "c", 3), ("d", 2, "d", 5)],
    ),
    "AWSDms": (
        "AWSDmsAvroPayload",
        DMS,
        "ts",
        [
            [("a", "I", 1, "a"), ("b", "I", 1, "b"), ("c", "I", 1, "c"), ("e", "I", 1, "e")],
            [("a", "U", 2, "a2"), ("b", "D", 2, None)],
            [("a", "D", 4, None), ("d", "D", 4, None), ("e", "U", 0, "low")],
            [("b", "I", 5, "back"), ("c", "D", 5, None)],
            [("a", "I", 6, "back"), ("b", "D", 6, None)],
        ],
        [("a", "I", 6, "back"), ("e", "U", 0, "low")],
    ),
    "PostgresDebezium": (
        "debezium.PostgresDebeziumAvroPayload",
        LSN,
        "_event_lsn",
        [
            [("a", 5, "c", "va"), ("b", 5, "c", "vb"), ("c", 5, "c", "vc"), ("e", 5, "c", "ve")],
            [("a", 6, "u", TOAST), ("b", 4, "u", "late"), ("c", 7, "d", None), ("e", 4, "d", None)],
            [("a", 7, "u", TOAST), ("b", 9, "d", None), ("d", 9, "d", None), ("f", 9, "c", "new")],
            [("c", 6, "c", "too late"), ("f", 10, "u", TOAST)],
            [("e", 3, "d", None), ("b", 10, "c", "back")],
        ],
        [("a", 7, "u", "va"), ("b", 10, "c", "back"), ("e", 5, "c", "ve"), ("f", 10, "u", "new")],
    ),
}
READ_BY_HUDI_RS = {"OverwriteNonDefaultsWithLatest", "PartialUpdate", "AWSDms"}


@pytest.mark.parametrize("name", PAYLOADS)
def test_rows_are_merged_by_the_payload_class_like_hudi(name: str, hudi: Hudi, tmp_path: Path) -> None:
    payload, schema, ordering, batches, expected = PAYLOADS[name]
    location = str(tmp_path / "table")
    options = HUDI_OPTIONS | {
        "hoodie.datasource.write.payload.class": MODEL + payload,
        "hoodie.datasource.write.precombine.field": ordering,
    }

    def rows(number: int) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in batches[number]], schema)

    hudi.write(location, rows(0), options, mode="overwrite")
    hudi.write(location, rows(1), options)
    table = Table.open(location)
    assert_hudi_reads_the_same(hudi, table)
    table.upsert(rows(2))
    assert_hudi_reads_the_same(hudi, table)
    hudi.write(location, rows(3), options)
    # Hudi merges the log entries of a key before the base row, so a late row may win until the compaction.
    before = table.scan().to_arrow() if name == "PartialUpdate" else assert_hudi_reads_the_same(hudi, table)
    table.services.compaction.run(force=True)
    assert_same(before, assert_hudi_reads_the_same(hudi, table))
    table.upsert(rows(4))
    assert_hudi_reads_the_same(hudi, table)
    found = table.scan(schema.names).to_arrow().to_pylist()
    assert sorted(tuple(r[column] for column in schema.names) for r in found) == expected
    if name in READ_BY_HUDI_RS:
        assert_same(table.scan().to_arrow(), hudi_rs.read(location))


@pytest.mark.spark
def test_change_events_in_files_continue_a_debezium_table_of_hudi(
    hudi: Hudi, spark: SparkSession, tmp_path: Path
) -> None:
    location, landing = str(tmp_path / "table"), tmp_path / "landing"
    payload, schema, ordering, batches, _ = PAYLOADS["PostgresDebezium"]
    options = {
        "hoodie.datasource.write.payload.class": MODEL + payload,
        "hoodie.datasource.write.precombine.field": ordering,
    }
    for number, mode in enumerate(("overwrite", "append")):
        rows = pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in batches[number]], schema)
        hudi.write(location, rows, HUDI_OPTIONS | options, mode=mode)

    def event(op: str, lsn: int, key: str, text: str | None) -> str:
        row = {"id": key, "v": text}
        images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return json.dumps({**images, "op": op, "ts_ms": 1, "source": {"lsn": lsn}})

    landing.mkdir()
    events = [
        event("u", 7, "a", TOAST),
        event("d", 9, "b", None),
        event("u", 4, "e", "late"),
        event("c", 9, "f", "new"),
    ]
    (landing / "1.json").write_text("\n".join(events))
    spec = TableSpec(
        table="theirs",
        location=location,
        record_key=("id",),
        type="MERGE_ON_READ",
        ordering=("_event_lsn",),
        partial_update="FILL_UNAVAILABLE",
        delete_field="_change_operation_type",
        delete_marker="d",
        schema={"id": "string", "_event_lsn": "bigint", "_change_operation_type": "string", "v": "string"},
        ingest=file_ingest(path=f"{landing}/", format="debezium"),
    )
    report = run_ingest(spark, spec, IngestCommand(table="theirs"), environ={})
    assert report.bad_records == 0
    table = Table.open(location)
    assert_hudi_reads_the_same(hudi, table)
    assert values(table) == {"a": "va", "e": "ve", "f": "new"}


@pytest.mark.parametrize("payload", ["OverwriteNonDefaultsWithLatestAvroPayload", "AWSDmsAvroPayload"])
def test_payload_classes_of_version_8_tables_are_merged_like_hudi(payload: str, hudi: Hudi, tmp_path: Path) -> None:
    _, schema, ordering, batches, expected = PAYLOADS[payload.removesuffix("AvroPayload")]
    location = str(tmp_path / "table")
    options = (
        HUDI_OPTIONS
        | STAYS_AT_8
        | {
            "hoodie.datasource.write.payload.class": MODEL + payload,
            "hoodie.datasource.write.precombine.field": ordering,
        }
    )
    for number, values_ in enumerate(batches):
        rows = pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in values_], schema)
        if number in (2, 4):
            Table.open(location).upsert(rows)
        else:
            hudi.write(location, rows, options, mode="append" if number else "overwrite")
    table = Table.open(location)
    assert table.config.version == 8 and table.config.merge_mode == "CUSTOM"
    assert_hudi_reads_the_same(hudi, table)
    found = table.scan(schema.names).to_arrow().to_pylist()
    assert sorted(tuple(r[column] for column in schema.names) for r in found) == expected
    table.services.compaction.run(force=True)
    assert_hudi_reads_the_same(hudi, table)


UTC = dt.UTC
#: Types of ordering columns with three values: middle, high and low.
ORDERINGS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [5, 9, 1]),
    "string": (pa.string(), ["b", "c", "a"]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, day, tzinfo=UTC) for day in (5, 9, 1)]),
    "decimal": (pa.decimal128(9, 2), [Decimal("5.25"), Decimal("9.25"), Decimal("-1.25")]),
}


@pytest.mark.parametrize("name", ORDERINGS)
def test_deletes_of_hudi_are_ordered_like_hudi(name: str, hudi: Hudi, tmp_path: Path) -> None:
    kind, (middle, great, small) = ORDERINGS[name]
    schema = pa.schema([("id", pa.string()), ("ts", kind), (DELETED, pa.bool_())])
    location = str(tmp_path / "table")

    def rows(*given: tuple[str, Any, bool]) -> pa.Table:
        return batch([dict(zip(schema.names, r, strict=True)) for r in given], schema)

    hudi.write(location, rows(*((key, middle, False) for key in "abc")), HUDI_OPTIONS | ORDERED, mode="overwrite")
    hudi.write(location, rows(("a", great, True), ("b", small, True)), HUDI_OPTIONS | ORDERED)
    table = Table.open(location)
    assert [block.kind for block in blocks(table)] == [BlockType.DELETE]
    assert sorted(assert_hudi_reads_the_same(hudi, table).column("id").to_pylist()) == ["b", "c"]
    table.upsert(rows(("a", middle, False), ("c", great, False)))
    assert_hudi_reads_the_same(hudi, table)


def test_several_ordering_columns_are_compared_like_hudi(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    options = HUDI_OPTIONS | {"hoodie.datasource.write.precombine.field": "ts,at"}

    def rows(*given: tuple[str, int, int, bool]) -> pa.Table:
        return batch([row(key, ts=ts, at=at, v=f"{ts}.{at}", **{DELETED: dead}) for key, ts, at, dead in given])

    hudi.write(location, rows(*((key, 5, 5, False) for key in "abcdef")), options, mode="overwrite")
    changes = [("a", 5, 6, False), ("b", 5, 4, False), ("c", 5, 6, True), ("d", 5, 4, True), ("e", 6, 0, False)]
    hudi.write(location, rows(*changes), options)
    table = Table.open(location)
    assert table.config.ordering_fields == ("ts", "at")
    assert_hudi_reads_the_same(hudi, table)
    assert values(table) == {"a": "5.6", "b": "5.5", "d": "5.5", "e": "6.0", "f": "5.5"}
    table.upsert(rows(("a", 5, 5, False), ("d", 5, 6, True), ("e", 6, 1, False), ("f", 5, 4, True)))
    assert_hudi_reads_the_same(hudi, table)
    assert values(table) == {"a": "5.6", "b": "5.5", "e": "6.1", "f": "5.5"}
    table.services.compaction.run(force=True)
    hudi.write(location, rows(("a", 5, 7, False), ("e", 6, 0, True)), options)
    assert_hudi_reads_the_same(hudi, table)
    assert values(table) == {"a": "5.7", "b": "5.5", "e": "6.1", "f": "5.5"}


@pytest.mark.parametrize("logs", [{}, PARQUET_LOGS], ids=["avro", "parquet"])
def test_rows_with_the_same_key_are_updated_like_hudi(logs: Options, hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), HUDI_OPTIONS | ORDERED | logs
    twice = [row("a", ts=5, v="one"), row("a", ts=7, v="two"), row("b", ts=5)]
    hudi.write(location, batch(twice), options | {"hoodie.datasource.write.operation": "bulk_insert"}, mode="overwrite")
    table = Table.open(location)

    def shown() -> list[str]:
        rows = assert_hudi_reads_the_same(hudi, table)
        return sorted(r["v"] for r in rows.to_pylist() if r["id"] == "a")

    for ts, expected in ((6, ["new 6", "two"]), (8, ["new 8", "new 8"])):
        hudi.write(location, batch([row("a", ts=ts, v=f"new {ts}")]), options)
        assert all(block.headers.get(BlockHeader.RECORD_POSITIONS) for block in blocks(table))
        assert shown() == expected
    # Log files of lakehouse have no record positions, so a log would update the first row only.
    with pytest.raises(UserError, match="a log changes one of them only"):
        table.upsert(batch([row("a", ts=9, v="ours")]))
    table.services.compaction.run(force=True)
    assert shown() == ["new 8", "new 8"]
    table.upsert(batch([row("a", ts=9, v="ours")]))
    assert shown() == ["ours", "ours"]


@pytest.mark.parametrize("logs", [{}, PARQUET_LOGS], ids=["avro", "parquet"])
def test_all_types_in_log_files_of_hudi_are_read(logs: Options, hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), HUDI_OPTIONS | ORDERED | logs
    first = pa.Table.from_pylist([everything_writable(i) for i in (1, 2, 3)], schema=EVERYTHING)
    hudi.write(location, first, options, mode="overwrite")
    later = [everything_writable(1) | {"ts": 9, "items": [], "raw": None}, nothing(2) | {"id": "k2", "ts": 9}]
    hudi.write(location, pa.Table.from_pylist(later, schema=EVERYTHING), options)
    table = Table.open(location)
    assert len(blocks(table)) == 1
    assert len(assert_hudi_reads_the_same(hudi, table)) == 3
    table.upsert(pa.Table.from_pylist([everything_writable(3) | {"ts": 9, "day": None}], schema=EVERYTHING))
    table.services.compaction.run(force=True)
    assert len(assert_hudi_reads_the_same(hudi, table)) == 3


def test_mysql_debezium_tables_are_ordered_by_file_and_position(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    names = ["id", "_event_bin_file", "_event_pos", "_change_operation_type", "v"]
    schema = pa.schema([(name, pa.int64() if name == "_event_pos" else pa.string()) for name in names])
    options = HUDI_OPTIONS | {
        "hoodie.datasource.write.payload.class": f"{MODEL}debezium.MySqlDebeziumAvroPayload",
        "hoodie.datasource.write.precombine.field": "_event_bin_file,_event_pos",
    }

    def rows(*given: tuple[str, int, int, str, str | None]) -> pa.Table:
        full = [(key, f"mysql-bin.{file:06d}", position, op, v) for key, file, position, op, v in given]
        return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in full], schema)

    begin = [("a", 1, 5, "c", "va"), ("b", 1, 100, "c", "vb"), ("c", 1, 5, "c", "vc"), ("e", 2, 5, "c", "ve")]
    hudi.write(location, rows(*begin), options, mode="overwrite")
    changes = [("a", 1, 50, "u", "a2"), ("b", 1, 99, "u", "late"), ("c", 1, 7, "d", None), ("e", 10, 4, "u", "e2")]
    hudi.write(location, rows(*changes), options)
    table = Table.open(location)
    assert_hudi_reads_the_same(hudi, table)
    assert values(table) == {"a": "a2", "b": "vb", "e": "e2"}
    table.upsert(
        rows(("a", 2, 1, "d", None), ("b", 1, 99, "d", None), ("e", 9, 9, "u", "late"), ("f", 1, 1, "d", None))
    )
    assert_hudi_reads_the_same(hudi, table)
    assert values(table) == {"b": "vb", "e": "e2"}
