"""Change events of Debezium in files: rows, deletes, order, and fields that no column takes."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.drift import Drift
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import changed_ingest, file_ingest

pytestmark = pytest.mark.spark
UNAVAILABLE = "__debezium_unavailable_value"
MYSQL = {"_change_operation_type": "string", "_event_bin_file": "string", "_event_pos": "bigint"}
POSTGRES = {"_change_operation_type": "string", "_event_lsn": "bigint"}


def spec_of(root: Path, format: str, **settings: Any) -> TableSpec:
    """Return the spec of a table of change events in the folder `landing`."""
    (root / "landing").mkdir()
    return TableSpec(
        table="customers",
        location=str(root / "table"),
        record_key=("id",),
        type="MERGE_ON_READ",
        delete_field="_change_operation_type",
        delete_marker="d",
        ingest=file_ingest(path=f"{root}/landing/", format=format, max_bad_records=5),
        **settings,
    )


def run(spark: SparkSession, spec: TableSpec) -> IngestReport:
    """Run once."""
    return run_ingest(spark, spec, IngestCommand(table="x"), environ={})


def rows(spec: TableSpec, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of the table, sorted."""
    found = Table.open(spec.location).scan(columns=list(names)).to_arrow().to_pylist()
    return sorted(tuple(row[name] for name in names) for row in found)


def ignored(report: IngestReport) -> dict[str, tuple[int, str]]:
    """Return number and example of the fields that were not read."""
    return {one.column: (one.rows, one.example) for one in report.drift if one.change is Drift.IGNORED}


def event(op: str, pos: int, before: object, after: object) -> dict[str, Any]:
    """Return an event of MySQL."""
    source = {"file": "binlog.000001", "pos": pos, "ts_ms": 1}
    return {"before": before, "after": after, "op": op, "ts_ms": 2, "source": source}


def test_lines_of_json_are_applied_in_the_order_of_the_binlog(spark: SparkSession, tmp_path: Path) -> None:
    schema = {"id": "bigint", "name": "string", "at": "timestamp", **MYSQL}
    spec = spec_of(tmp_path, "debezium", schema=schema, ordering=("_event_bin_file", "_event_pos"))
    described = {"fields": [{"field": "after", "fields": [{"field": "at", "name": "io.debezium.time.Timestamp"}]}]}
    a, b = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    first = [
        event("r", 1, None, a | {"vat": 7}),
        event("c", 2, None, b),
        # The key of b changes: Debezium sends a delete, a tombstone, and a new row.
        event("d", 3, b, None),
        None,
        event("c", 4, None, b | {"id": 3}),
        {"schema": described, "payload": event("c", 5, None, {"id": 4, "at": 1_000})},
    ]
    later = [event("u", 9, a, a | {"name": "newest"}), event("d", 8, a, None), event("u", 6, a, a | {"name": "old"})]
    text = "".join(f"{json.dumps(one)}\n" for one in first)
    (tmp_path / "landing/1.json").write_text(f"{text}\nno event\n")
    with pa.output_stream(str(tmp_path / "landing/2.json.zst"), compression="zstd") as stream:
        stream.write("\n".join(map(json.dumps, later)).encode())
    report = run(spark, spec)
    assert (report.bad_records, ignored(report)) == (1, {"vat": (1, "7")})
    assert rows(spec, "id", "name", "at") == [
        (1, "newest", None),
        (3, "b", None),
        (4, None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ]
    letters = open_storage(f"{spec.location}_dead_letters")
    assert [json.loads(letters.get(one.path))["record"] for one in letters.list("")] == ["no event"]
    (tmp_path / "landing/3.json").write_text(json.dumps(event("d", 10, b | {"id": 3}, None)))
    assert run(spark, spec).deletes == 1
    assert [one for (one,) in rows(spec, "id")] == [1, 4]
    with pytest.raises(UserError, match="deletes of Debezium would be stored as rows: add 'delete_field: _change_oper"):
        run(spark, replace(spec, delete_field="", location=str(tmp_path / "other")))


def avro_file(path: Path, events: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    """Write events of PostgreSQL as the sinks of Kafka Connect do."""

    def optional(kind: object) -> dict[str, Any]:
        return {"type": ["null", kind], "default": None}

    fields = [
        {"name": "id", "type": "long"},
        {"name": "text", **optional("string")},
        {"name": "born", **optional({"type": "int", "connect.name": "io.debezium.time.Date"})},
        *more,
    ]
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", **optional("long")}]}
    schema = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.customers",
        "fields": [
            {"name": "before", **optional({"type": "record", "name": "Value", "fields": fields})},
            {"name": "after", **optional("Value")},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", **optional("long")},
        ],
    }
    out = io.BytesIO()
    fastavro.writer(out, schema, events, codec="deflate")
    path.write_bytes(out.getvalue())


def test_avro_files_keep_stored_texts_that_were_not_sent(spark: SparkSession, tmp_path: Path) -> None:
    schema = {"id": "bigint", "text": "string", "born": "date", **POSTGRES}
    settings = {"ordering": ("_event_lsn",), "partial_update": "FILL_UNAVAILABLE", "schema": schema}
    spec = spec_of(tmp_path, "debezium_avro", **settings)

    def changed(op: str, lsn: int, before: object, after: object) -> dict[str, Any]:
        return {"before": before, "after": after, "op": op, "ts_ms": 1, "source": {"lsn": lsn}}

    a, b = {"id": 1, "text": "long", "born": 10}, {"id": 2, "text": "b", "born": None}
    avro_file(tmp_path / "landing/1.avro", [changed("c", 1, None, a), changed("c", 2, None, b)], [])
    assert run(spark, spec).drift == ()
    newer = [{"name": "vat", "type": ["null", "int"], "default": None}]
    toast = changed("u", 5, None, a | {"text": UNAVAILABLE, "born": 11, "vat": 3})
    avro_file(tmp_path / "landing/2.avro", [toast, changed("d", 6, b, None)], newer)
    report = run(spark, spec)
    assert (report.bad_records, ignored(report)) == (0, {"vat": (1, "3")})
    assert rows(spec, "id", "text", "born") == [(1, "long", date(1970, 1, 12))]
    strict = replace(spec, ingest=changed_ingest(spec.ingest, new_column="fail"))
    avro_file(tmp_path / "landing/3.avro", [changed("u", 7, None, a | {"vat": 4})], newer)
    with pytest.raises(UserError, match="field 'vat' of 1 records, such as 4, is not among the columns of table custo"):
        run(spark, strict)
