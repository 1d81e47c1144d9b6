"""Limits of a run, compressed files, and fields of records that no column takes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.model.drift import Drift
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.transform import TransformSpec
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import changed_ingest, file_ingest

pytestmark = pytest.mark.spark


def spec_of(root: Path, format: str = "json") -> TableSpec:
    """Return the spec of a table that ingests files of the folder `landing`."""
    (root / "landing").mkdir()
    return TableSpec(
        table="t",
        location=str(root / "table"),
        record_key=("id",),
        schema={"id": "bigint", "place": "struct<x: bigint>"} if format == "json" else {"id": "bigint"},
        ingest=file_ingest(path=f"{root}/landing/", format=format),
    )


def land(root: Path, name: str, text: str, modified_s: int = 1) -> None:
    """Write a file, compressed as its name says."""
    path, codec = root / "landing" / name, {".gz": "gzip", ".zst": "zstd"}.get(Path(name).suffix)
    with pa.output_stream(str(path), compression=codec) as stream:
        stream.write(text.encode())
    os.utime(path, (modified_s, modified_s))


def run(spark: SparkSession, spec: TableSpec) -> IngestReport:
    """Run once."""
    return run_ingest(spark, spec, IngestCommand(table="x"), environ={})


def ignored(report: IngestReport) -> dict[str, tuple[int, str]]:
    """Return number and example of the fields that were not read."""
    return {one.column: (one.rows, one.example) for one in report.drift if one.change is Drift.IGNORED}


def test_limited_runs_read_the_oldest_files_first_and_report_what_is_left(spark: SparkSession, tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    spec = replace(spec, ingest=changed_ingest(spec.ingest, max_files=2))
    for number in range(3):
        land(tmp_path, f"{9 - number}.json.zst", json.dumps({"id": number}), modified_s=number + 1)
    first = run(spark, spec)
    assert (first.rows, [(one.unit, one.left) for one in first.lag]) == (2, [("files", 1)])
    assert sorted(Table.open(spec.location).scan(columns=["id"]).to_arrow().column("id").to_pylist()) == [0, 1]
    second = run(spark, spec)
    assert (second.rows, [one.left for one in second.lag]) == (1, [0])
    assert run(spark, spec).status is JobStatus.NOTHING_TO_DO


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_ignored_fields_of_any_record_are_counted_with_an_example(
    spark: SparkSession, tmp_path: Path, suffix: str
) -> None:
    spec = spec_of(tmp_path)
    transform = TransformSpec(sql="SELECT * FROM batch") if suffix == ".gz" else None
    spec = replace(spec, ingest=changed_ingest(spec.ingest, new_column="ignore", transform=transform))
    records = [
        {"id": 1, "place": {"x": 1}},
        {"id": 2, "place": {"x": 1, "y": "far"}},
        {"id": 3, "vat": 7},
        {"id": 4, "vat": 8},
    ]
    land(tmp_path, f"a.json{suffix}", "\n".join(map(json.dumps, records)))
    report = run(spark, spec)
    assert ignored(report) == {"place.y": (1, '"far"'), "vat": (2, "7")}
    assert "field vat of 2 records is not read, such as 7" in report.warning


def test_zstd_files_of_csv_are_read(spark: SparkSession, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "csv")
    land(tmp_path, "a.csv.zst", "id,more\n" + "".join(f"{number},{number * 7}\n" for number in range(20_000)))
    assert run(spark, spec).rows == 20_000
    assert Table.open(spec.location).scan(columns=["id", "more"], where="id = 19999").to_arrow().to_pylist() == [
        {"id": 19999, "more": 139993}
    ]
