"""A column that marks deletes, or that the spec names, is read although other new columns are ignored."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.sources.new_fields import with_new_columns
from lakehouse.platform.sources.source import KnownColumns
from lakehouse.platform.sources.unread_fields import UnreadField
from lakehouse.spark.sources import schema_of_arrow
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

pytestmark = pytest.mark.spark
ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}]


def spec_of(place: Path, format: str, more: str = "", key: str = "id") -> TableSpec:
    document = f"table: t\nlocation: {place}/t\nrecord_key: {key}\n{more}"
    return parse_spec(
        f"{document}ingest: {{path: {place}/landing, format: {format}, new_column: ignore}}\n", source="t.yaml"
    )


def ingested(spark: SparkSession, spec: TableSpec, place: Path, name: str, rows: list[dict[str, Any]]) -> IngestReport:
    """Land a file and run once."""
    landing = place / "landing"
    landing.mkdir(exist_ok=True)
    text = io.StringIO()
    if spec.ingest is not None and "csv" in str(spec.to_mapping()):
        writer = csv.DictWriter(text, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({name: str(value).lower() for name, value in row.items()} for row in rows)
    else:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    (landing / name).write_text(text.getvalue())
    return run_ingest(spark, spec, IngestCommand(table="t"), environ={})


def stored(spec: TableSpec) -> dict[str, int]:
    rows = Table.open(spec.location).scan(["id", "n"]).to_arrow().to_pylist()
    return {row["id"]: row["n"] for row in rows}


@pytest.mark.parametrize("format", ["json", "csv"])
@pytest.mark.parametrize(
    ("more", "mark"),
    [("", {"_hoodie_is_deleted": True}), ("delete_field: op\ndelete_marker: d\n", {"op": "d"})],
    ids=["flag", "field"],
)
def test_delete_mark_of_a_later_file_deletes_where_other_new_columns_are_ignored(
    spark: SparkSession, tmp_path: Path, format: str, more: str, mark: dict[str, Any]
) -> None:
    """apache/hudi#5385: the first load has no mark, and later batches have one; apache/hudi#2770: deletes as rows."""
    spec = spec_of(tmp_path, format, more)
    ingested(spark, spec, tmp_path, f"1.{format}", ROWS)
    kept = {"_hoodie_is_deleted": False} if "op" not in mark else {"op": "u"}
    changes = [{"id": "a", "n": 0, "extra": "x", **mark}, {"id": "c", "n": 3, "extra": "x", **kept}]
    report = ingested(spark, spec, tmp_path, f"2.{format}", changes)
    assert stored(spec) == {"b": 2, "c": 3}
    assert "extra" not in Table.open(spec.location).schema.names
    assert [(one.column, str(one.change)) for one in report.drift if one.change == "ignored"] == [("extra", "ignored")]
    # A file without marks deletes nothing.
    ingested(spark, spec, tmp_path, f"3.{format}", [{"id": "a", "n": 5}])
    assert stored(spec) == {"a": 5, "b": 2, "c": 3}


@pytest.mark.parametrize("name", ["_hoodie_is_deleted", "op", "at", "day"])
def test_field_of_messages_with_a_meaning_is_read_where_new_fields_are_ignored(tmp_path: Path, name: str) -> None:
    """The class of apache/hudi#1482, for messages: delete marks, the ordering column and the partition column."""
    spec = spec_of(tmp_path, "json", "ordering: at\npartition_by: day\ndelete_field: op\ndelete_marker: d\n")
    schema = schema_of_arrow(pa.schema({"id": pa.string()}))
    known = KnownColumns(policy=SchemaPolicy(new_column="ignore"), schema=None, is_stored=True, table=None)
    kind = pa.bool_() if name == "_hoodie_is_deleted" else pa.string()
    fields = [
        UnreadField(path=(name,), records=1, example="true", type=kind),
        UnreadField(path=("extra",), records=1, example="1", type=pa.int64()),
    ]
    assert with_new_columns(schema, fields, spec, known).names == ["id", name]
