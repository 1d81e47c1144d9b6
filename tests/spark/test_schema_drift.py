"""Schema drift in complete ingest runs: change x file format x table type x policy, compared with a dict of rows.

Every run ingests two files: one with the columns of the table and one with different columns. The rows of both must be
correct, and report and commit must count the drift.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.drift import decode_drift
from lakehouse.platform.catalog.declared_tables import create_declared_table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport, parse_report
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import file_ingest

pytestmark = pytest.mark.spark

Row = dict[str, Any]
TYPES = {"id": pa.int32(), "name": pa.string(), "n": pa.int32(), "extra": pa.string()}
FIRST: tuple[Row, ...] = (
    {"id": 1, "name": "a", "n": 1},
    {"id": 2, "name": "b", "n": 2},
    {"id": 3, "name": "c", "n": 3},
)
#: Rows of the second run with the columns of the table: an update and an insert.
ALIKE: tuple[Row, ...] = ({"id": 1, "name": "A", "n": 10}, {"id": 4, "name": "D", "n": 40})


@dataclass(frozen=True)
class Case:
    """A file with different columns and a policy; the expected rows, or the expected error text.

    `drift` is the expected drift as (column, change, rows).
    """

    name: str
    rows: tuple[Row, ...]
    types: Mapping[str, pa.DataType]
    policy: Mapping[str, str]
    expected: tuple[Row, ...] = ()
    drift: tuple[tuple[str, str, int], ...] = ()
    error: str = ""
    formats: tuple[str, ...] = ("json", "csv", "parquet")


NEW = ({"id": 2, "name": "B", "n": 20, "extra": "x"}, {"id": 5, "name": "E", "n": 50, "extra": "y"})
LACKING = ({"id": 2, "n": 20}, {"id": 5, "n": 50})
RENAMED = ({"id": 2, "n": 20, "extra": "x"}, {"id": 5, "n": 50, "extra": "y"})
HALVES = ({"id": 2, "name": "B", "n": 0.5}, {"id": 5, "name": "E", "n": 5.0})
WORDS = ({"id": 2, "name": "B", "n": "x"}, {"id": 5, "name": "E", "n": "y"})
LARGE = ({"id": 2, "name": "B", "n": 2**40}, {"id": 5, "name": "E", "n": 5})
DOUBLE, TEXT, LONG = {"n": pa.float64()}, {"n": pa.string()}, {"n": pa.int64()}
#: JSON has no 32-bit integers: its whole numbers are long.
INTS = ("csv", "parquet")
CASES = (
    Case("new", NEW, {}, {}, NEW, (("extra", "added", 2),)),
    Case(
        "new, ignored",
        NEW,
        {},
        {"new_column": "ignore"},
        tuple({k: v for k, v in row.items() if k != "extra"} for row in NEW),
        (("extra", "ignored", 2),),
    ),
    Case("new, refused", NEW, {}, {"new_column": "fail"}, error="column 'extra'"),
    Case(
        "missing",
        LACKING,
        {},
        {},
        ({"id": 2, "name": "b", "n": 20}, {"id": 5, "n": 50}),
        (("name", "kept", 1), ("name", "nulled", 1)),
    ),
    Case(
        "missing, null",
        LACKING,
        {},
        {"missing_column": "null"},
        ({"id": 2, "name": None, "n": 20}, {"id": 5, "n": 50}),
        (("name", "nulled", 2),),
    ),
    Case("missing, refused", LACKING, {}, {"missing_column": "fail"}, error="column 'name' of the table is not in"),
    Case(
        "renamed",
        RENAMED,
        {},
        {},
        ({"id": 2, "name": "b", "n": 20, "extra": "x"}, {"id": 5, "n": 50, "extra": "y"}),
        (("extra", "added", 2), ("name", "kept", 1), ("name", "nulled", 1)),
    ),
    Case("int to double", HALVES, DOUBLE, {}, HALVES, (("n", "promoted", 4),), formats=INTS),
    Case("int to long", LARGE, LONG, {}, LARGE, (("n", "promoted", 4),), formats=INTS),
    Case("int to double, refused", HALVES, DOUBLE, {"type_change": "fail"}, error="does not parse|column 'n'"),
    Case("long to double", HALVES, DOUBLE, {}, error="does not parse", formats=("json",)),
    Case(
        "long to double, asked for",
        HALVES,
        DOUBLE,
        {"type_change": "lossy"},
        HALVES,
        (("n", "rounded", 4),),
        formats=("json",),
    ),
    Case("to text", WORDS, TEXT, {}, error="does not parse|column 'n'"),
    Case("to text, lossy", WORDS, TEXT, {"type_change": "lossy"}, error="does not parse|column 'n'"),
    Case("to text, asked for", WORDS, TEXT, {"type_change": "text"}, WORDS, (("n", "widened_to_text", 4),)),
)
#: Each case with each file format and each table type.
MATRIX = [
    pytest.param(case, format, kind, id=f"{case.name}-{format}-{kind[:1]}")
    for case in CASES
    for format in case.formats
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ")
]


def content(rows: Sequence[Row], format: str, types: Mapping[str, pa.DataType]) -> bytes:
    """Return the bytes of a file with these rows, which have equal columns."""
    names = list(rows[0])
    if format == "json":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()
    sink = pa.BufferOutputStream()
    kinds = {**TYPES, **types}
    pq.write_table(pa.Table.from_pylist(list(rows), pa.schema([(name, kinds[name]) for name in names])), sink)
    return sink.getvalue().to_pybytes()


class Job:
    """A table and its landing folder, from which each run ingests new files."""

    def __init__(self, spark: SparkSession, root: Path, format: str, kind: str, policy: Mapping[str, str]) -> None:
        self.spark, self.landing, self.format = spark, root / "landing", format
        self.landing.mkdir()
        self.spec = TableSpec(
            table="t",
            location=str(root / "table"),
            record_key=("id",),
            type=kind,
            ingest=file_ingest(path=str(self.landing), format=format, **policy),
        )

    def land(self, name: str, rows: Sequence[Row], types: Mapping[str, pa.DataType] | None = None) -> None:
        """Write a file."""
        (self.landing / f"{name}.{self.format}").write_bytes(content(rows, self.format, types or {}))

    def fill(self, whole_numbers: pa.DataType) -> None:
        """Create the table with its first rows."""
        table = create_declared_table(
            self.spec, self.spec.write_options(), Env(storage=open_storage(self.spec.location))
        )
        schema = pa.schema([("id", whole_numbers), ("name", pa.string()), ("n", whole_numbers)])
        table.upsert(pa.Table.from_pylist(list(FIRST), schema))

    def run(self) -> IngestReport:
        """Ingest the new files."""
        command = IngestCommand(table="t")
        return run_ingest(self.spark, self.spec, command, environ={})

    @property
    def table(self) -> Table:
        """Return the table."""
        return Table.open(self.spec.location)

    def rows(self) -> list[Row]:
        """Return the rows without meta columns, sorted by key."""
        rows = self.table.scan().to_arrow().drop_columns(list(META_COLUMNS)).to_pylist()
        return sorted(rows, key=lambda row: int(row["id"]))


def model(rows: Sequence[Row], columns: Sequence[str], as_text: bool) -> list[Row]:
    """Return the rows with all columns of the table."""
    whole = [{name: row.get(name) for name in columns} for row in rows]
    return [{**row, "n": None if row["n"] is None else str(row["n"])} if as_text else row for row in whole]


@pytest.mark.parametrize(("case", "format", "kind"), MATRIX)
def test_drift_is_handled_by_the_policy_and_counted(
    spark: SparkSession, tmp_path: Path, case: Case, format: str, kind: str
) -> None:
    job = Job(spark, tmp_path, format, kind, case.policy)
    job.fill(pa.int64() if format == "json" else pa.int32())
    job.land("2-alike", ALIKE)
    job.land("3-differs", case.rows, case.types)
    if case.error:
        with pytest.raises(UserError, match=case.error):
            job.run()
        assert job.rows() == model(FIRST, ("id", "name", "n"), as_text=False)
        return
    report = job.run()
    expected = {row["id"]: dict(row) for row in (*FIRST, *ALIKE)}
    expected |= {row["id"]: dict(row) for row in case.expected}
    columns = ("id", "name", "n", *(("extra",) if any("extra" in row for row in case.expected) else ()))
    rows = model([expected[key] for key in sorted(expected)], columns, as_text=case.types == TEXT)
    assert job.rows() == rows
    assert sorted((one.column, str(one.change), one.rows) for one in report.drift) == sorted(case.drift)
    assert decode_drift(job.table.commits()[-1][1].extra) == report.drift
    assert parse_report(report.to_json()) == report
    assert (report.inserts, report.updates) == (2, 2) or kind == "MERGE_ON_READ"


def test_json_records_without_a_field_of_their_file_are_counted_in_report_and_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path, "json", "COPY_ON_WRITE", {})
    job.fill(pa.int64())
    job.land("2", [{"id": 1, "n": 10}, {"id": 2, "name": "B", "extra": "x"}, {"id": 4, "name": None, "n": 40}])
    job.land("3", [{"id": 3, "n": 30}])
    report = job.run()
    assert {(one.column, str(one.change), one.rows) for one in report.drift} == {
        ("extra", "added", 1),
        ("n", "nulled", 1),
        ("name", "nulled", 1),
        ("name", "kept", 1),
    }
    assert decode_drift(job.table.commits()[-1][1].extra) == report.drift
    assert [(row["name"], row["n"]) for row in job.rows()] == [(None, 10), ("B", None), ("c", 30), (None, 40)]


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_text_of_a_key_never_changes(spark: SparkSession, tmp_path: Path, format: str) -> None:
    job = Job(spark, tmp_path, format, "COPY_ON_WRITE", {"type_change": "any"})
    job.fill(pa.int32())
    job.land("2-floats", [{**row, "id": float(row["id"])} for row in FIRST], {"id": pa.float64()})
    with pytest.raises(UserError, match=r"does not parse|'id'"):
        job.run()
    assert [row["id"] for row in job.rows()] == [1, 2, 3]


def test_added_columns_keep_their_type_with_a_declared_schema(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, "json", "COPY_ON_WRITE", {})
    job.spec = TableSpec(
        table="t",
        location=job.spec.location,
        record_key=("id",),
        schema={"id": "bigint", "name": "string"},
        ingest=job.spec.ingest,
    )
    job.land("1", [{"id": 1, "name": "a", "n": 1}])
    job.run()
    job.land("2", [{"id": 2, "name": "b", "n": "2"}])
    with pytest.raises(UserError, match="does not parse"):
        job.run()
    job.land("2", [{"id": 2, "n": 2}])
    assert [(one.column, str(one.change)) for one in job.run().drift] == [("name", "nulled")]
    assert [(row["name"], row["n"]) for row in job.rows()] == [("a", 1), (None, 2)]
