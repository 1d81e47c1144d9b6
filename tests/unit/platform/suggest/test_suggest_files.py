"""Specs that are suggested from samples of files, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse.cli.main import main
from lakehouse.errors import UserError
from lakehouse.platform.suggest.document import suggested_spec
from lakehouse.platform.suggest.files import sample_files, table_name
from lakehouse.platform.suggest.sample import Limits
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.dirty_files import DirtyFile, dirty_files, write
from tests.support.shared import shared_dir


def suggested(path: str | Path, limits: Limits | None = None) -> tuple[TableSpec, str]:
    """Return the spec that is suggested for a path, and its text."""
    text = suggested_spec(sample_files(str(path), "", limits or Limits(), os.environ, {}))
    return parse_spec(text, source="suggested.yaml"), text


def options_of(spec: TableSpec) -> dict[str, str]:
    """Return the options of the reader."""
    assert spec.ingest is not None
    assert isinstance(spec.ingest.source, FileSourceSpec)
    return dict(spec.ingest.source.options)


@pytest.mark.parametrize("file", dirty_files(), ids=lambda file: file.name)
def test_suggestion_has_types_options_and_roles_of_a_dirty_file(file: DirtyFile, tmp_path: Path) -> None:
    spec, text = suggested(write(file, tmp_path))
    assert {name: spec.schema.get(name) for name in file.types} == dict(file.types)
    assert options_of(spec) == dict(file.options)
    assert spec.record_key == file.key
    assert tuple(column.name for column in spec.partition_by) == ((file.partition,) if file.partition else ())
    comments = " ".join(line.partition("#")[2].strip() for line in text.splitlines() if "#" in line)
    assert [word for word in file.words if word not in comments] == []


def test_suggestion_for_taxi_trips() -> None:
    spec, text = suggested(shared_dir() / "data" / "nyc_taxi")
    zones = ("pickup_location_id", "dropoff_location_id")
    assert spec.record_key == ("vendor_id", "pickup_datetime", "dropoff_datetime", *zones)
    assert [column.name for column in spec.partition_by] == ["pickup_datetime"]
    assert spec.schema["congestion_surcharge"] == "double"
    assert "9,996 rows" in text
    assert "of 6 files" in text


def test_suggestion_for_stock_ticks_orders_versions_of_a_repeated_key() -> None:
    spec, text = suggested(shared_dir() / "data" / "stock_ticks")
    assert (spec.record_key, spec.ordering) == (("key",), ("ts",))
    assert spec.schema["date"] == "string"
    assert "197 values in 5,150 sampled rows" in text
    assert [column.timestamp and column.timestamp.input_formats for column in spec.partition_by] == [("yyyy/MM/dd",)]


def test_suggestion_for_weather_reads_na_as_null() -> None:
    spec, _ = suggested(shared_dir() / "data" / "nycflights13" / "weather.csv.gz")
    assert spec.record_key == ("origin", "time_hour")
    assert options_of(spec) == {"nullValue": "NA"}
    assert (spec.schema["wind_gust"], spec.schema["wind_dir"]) == ("double", "int")


def test_suggestion_states_the_bounds_of_the_sample(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02d}.csv").write_text("id,n\n" + "".join(f"{number}-{row},{row}\n" for row in range(50)))
    _, text = suggested(tmp_path, Limits(rows=40, files=4))
    assert "Suggested from 40 rows" in text
    assert "of 4 of 30 files" in text
    assert "Other rows may have other columns" in text.replace("\n# ", " ")
    _, whole = suggested(tmp_path, Limits(rows=10_000, files=30))
    assert "All rows were read" in whole.replace("\n# ", " ")


def test_suggestion_counts_bad_records_with_file_and_reason(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,2\n2,3\n3,4,5\n4,5\n5,6\n")
    _, text = suggested(tmp_path)
    comments = text.replace("\n# ", " ")
    assert "1 of 5 sampled records are bad" in comments
    assert "record 3: 3 values instead of 2: '3,4,5'" in comments


def test_suggestion_takes_the_columns_of_all_sampled_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\na,1\nb,2\n")
    (tmp_path / "b.csv").write_text("N,id,extra\n3.5,c,x\n")
    spec, _ = suggested(tmp_path)
    assert dict(spec.schema) == {"id": "string", "n": "double", "extra": "string"}


def test_suggestion_of_a_path_by_interval_samples_all_intervals(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "a.csv").write_text(f"id,n\n{day},1\n")
    spec, text = suggested(f"{tmp_path}/{{start:%Y-%m-%d}}/")
    assert "Suggested from 2 rows" in text
    assert spec.ingest is not None
    assert spec.ingest.is_by_interval


def test_suggestion_finds_the_encoding_of_any_sampled_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    (tmp_path / "b.csv").write_bytes("id,name\n2,Müller\n".encode("windows-1252"))
    assert options_of(suggested(tmp_path)[0]) == {"encoding": "windows-1252"}


def test_suggestion_refuses_a_text_that_is_neither_json_nor_csv() -> None:
    with pytest.raises(UserError, match="not JSON, and its lines do not have the same number of values"):
        suggested(shared_dir() / "data" / "logs" / "apache_access.log.gz")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("id,name\n", "they have a header only"),
        ("id,id\n1,2\n", "has a column twice or without a name: 'id,id'"),
        ("id,n\n1,2,3\n", "1,2,3"),
    ],
)
def test_suggestion_refuses_csv_without_rows_or_with_a_wrong_header(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=problem):
        suggested(tmp_path)


def test_suggestion_keeps_space_around_texts_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1, a \n2, b\n")
    _, text = suggested(tmp_path)
    assert "texts of name have space around them" in text.replace("\n# ", " ")


def test_suggestion_refuses_a_path_without_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        suggested(tmp_path / "nothing" / "here")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(UserError, match="has no files with data"):
        suggested(tmp_path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("landing/orders/", "orders"),
        ("s3://landing/shop/2026-*/part.csv.gz", "part"),
        ("s3://bucket/", "bucket"),
        ("landing/orders/{start:%Y}/", "orders"),
        ("2026 Orders.csv", "t_2026_orders"),
        ("*.csv", "table"),
    ],
)
def test_name_of_the_table_is_the_last_part_of_the_path(path: str, name: str) -> None:
    assert table_name(path) == name


def test_command_writes_a_spec_that_passes_the_check_and_replaces_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("landing").mkdir()
    Path("landing/a.csv").write_text("id,fare\n1,2.5\n2,3.5\n")
    assert main(["spec", "suggest", "landing/", "--to", "specs/orders.yaml", "--name", "shop.orders"]) == 0
    assert main(["spec", "check", "specs/orders.yaml"]) == 0
    out = capsys.readouterr().out
    assert "wrote specs/orders.yaml" in out
    assert "the run creates it" in out
    assert main(["spec", "suggest", "landing/", "--to", "specs/orders.yaml"]) != 0
    assert "Give --replace" in capsys.readouterr().err
    assert "table: shop.orders" in Path("specs/orders.yaml").read_text()


def test_command_with_a_further_word_names_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "suggest", "landing/", "more"]) != 0
    assert "unexpected argument 'more'; this command takes SOURCE, and flags" in capsys.readouterr().err


def test_command_refuses_a_connection_without_a_topic_or_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", '{"conn_type": "postgres", "host": "h"}')
    assert main(["spec", "suggest", "shop_db"]) != 0
    assert "'shop_db' is a connection: give --topic of Kafka, or --tables" in capsys.readouterr().err


def test_command_refuses_a_url_with_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "suggest", "s3://key:hidden@bucket/orders/"]) != 0
    assert "hidden" not in capsys.readouterr().err


def test_suggestion_of_files_imports_no_spark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,fare\n1,2.5\n")
    code = (
        "import sys; from lakehouse.cli.main import main\n"
        f"assert main(['spec', 'suggest', {str(tmp_path)!r}]) == 0\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
