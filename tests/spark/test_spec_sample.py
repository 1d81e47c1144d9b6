"""`lakehouse spec check --sample`: the first rows as they would be stored, and the bad records with their places."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.errors import UserError
from lakehouse.platform.ingest.sample import sample_ingestion
from lakehouse.platform.suggest.sample import Limits
from lakehouse.spec.contracts.spec_sample import SpecSample
from lakehouse.spec.table.table_spec import parse_spec

pytestmark = pytest.mark.spark
CSV = 'id,fare,day\n1,2.5,2026-01-01\n2,"abc",2026-01-02\n\n3,"4.5",2026-01-03\n4,5.5\n"5 ""x""",6.5,2026-13-01\n'
SCHEMA = "schema: {id: string, fare: double, day: date}"


def sampled(session: Any, home: Path, *lines: str, limits: Limits | None = None) -> SpecSample:
    """Return the sample of the spec with these lines, whose files are in `landing`."""
    text = "\n".join(("table: orders", f"location: {home}/lake", "record_key: [id]", *lines))
    spec = parse_spec(text.replace("HOME", str(home)), source="orders.yaml")
    return sample_ingestion(session, spec, {}, limits or Limits(), shown=10)


def land(home: Path, name: str, content: str | bytes) -> None:
    """Write a file of the landing zone."""
    (home / "landing").mkdir(exist_ok=True)
    (home / "landing" / name).write_bytes(content.encode() if isinstance(content, str) else content)


def test_sample_of_csv_shows_rows_and_bad_records_with_line_column_value_and_type(spark: Any, tmp_path: Path) -> None:
    land(tmp_path, "a.csv", CSV)
    sample = sampled(spark, tmp_path, SCHEMA, "ingest: {path: HOME/landing/, format: csv}")
    assert (sample.records, sample.rows, sample.bad_records) == (5, 2, 3)
    assert [(row["id"], row["fare"], row["day"]) for row in sample.first_rows] == [
        ("1", 2.5, "2026-01-01"),
        ("3", 4.5, "2026-01-03"),
    ]
    reasons = {bad.place.rpartition(", ")[2]: bad.reason for bad in sample.bad}
    assert set(reasons) == {"line 3", "line 6", "line 7"}
    assert "column 'fare': 'abc' is not a value of the declared type double" in reasons["line 3"]
    assert "column 'day': '2026-13-01' is not a value of the declared type date" in reasons["line 7"]
    assert all(bad.place.startswith(f"{tmp_path}/landing/a.csv") for bad in sample.bad)
    assert not (tmp_path / "lake").exists()
    assert not (tmp_path / "lake_dead_letters").exists()


def test_sample_of_packed_json_has_lines_and_computed_columns(spark: Any, tmp_path: Path) -> None:
    lines = ['{"id": "a", "n": 1}', '{"id": "b", "n": "x"}', "{broken", '{"id": "c", "n": 3}']
    land(tmp_path, "a.json.gz", gzip.compress("\n".join(lines).encode()))
    ingest = 'ingest: {path: HOME/landing/, select: ["*", "n * 2 AS twice"]}'
    sample = sampled(spark, tmp_path, "schema: {id: string, n: int}", ingest)
    assert [(row["id"], row["twice"]) for row in sample.first_rows] == [("a", 2), ("c", 6)]
    assert sorted(bad.place.rpartition(", ")[2] for bad in sample.bad) == ["line 2", "line 3"]
    assert sample.types["twice"] == "int"


def test_sample_reads_the_first_records_of_some_files_only(spark: Any, tmp_path: Path) -> None:
    for number in range(5):
        rows = "".join(f"{number}-{row},x\n" for row in range(20))
        # Behind the sample, an ingestion would find a bad record.
        land(tmp_path, f"{number}.csv", f"id,text\n{rows}too,many,values\n")
    ingest = "ingest: {path: HOME/landing/, format: csv}"
    sample = sampled(spark, tmp_path, ingest, limits=Limits(rows=6, files=2))
    assert (sample.records, sample.bad_records) == (6, 0)
    assert sample.scope.startswith("the first 6 records of 2 of 5 files")


def test_sample_of_windows_text_and_of_intervals_is_read_as_declared(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "landing" / "2026-01-01").mkdir(parents=True)
    (tmp_path / "landing" / "2026-01-01" / "a.csv").write_bytes("id;name\n1;Müller\n".encode("windows-1252"))
    options = '{sep: ";", encoding: windows-1252}'
    ingest = f'ingest: {{path: "HOME/landing/{{start:%Y-%m-%d}}/", format: csv, options: {options}}}'
    assert [row["name"] for row in sampled(spark, tmp_path, ingest).first_rows] == ["Müller"]


def test_sample_refuses_a_source_by_name_with_a_reason(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'postgres' is not sampled: the server declares the types"):
        sampled(spark, tmp_path, "ingest: {source: postgres, tables: [public.orders]}")
    with pytest.raises(UserError, match="'table' is not sampled: its rows are those of a table"):
        sampled(spark, tmp_path, "ingest: {source: table, tables: {other: HOME/other}}")


def test_command_shows_the_sample_and_fails_if_a_run_would_fail(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    land(tmp_path, "a.csv", CSV)
    spec = f"table: orders\nlocation: lake\nrecord_key: [id]\n{SCHEMA}\n"
    Path("orders.yaml").write_text(f"{spec}ingest: {{path: landing/, format: csv}}\n")
    assert main(["spec", "check", "orders.yaml", "--sample"]) == UserError.exit_code
    shown = capsys.readouterr()
    assert "2 rows, 3 bad records" in shown.out
    assert "landing/a.csv, line 3" in shown.out
    assert "max_bad_records is 0: a run would fail" in shown.err
    Path("orders.yaml").write_text(f"{spec}ingest: {{path: landing/, format: csv, max_bad_records: 3}}\n")
    assert main(["spec", "check", "orders.yaml", "--sample", "--output", "json"]) == 0
    assert SpecSample.from_mapping(json.loads(capsys.readouterr().out)).bad_records == 3
