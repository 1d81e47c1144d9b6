"""Specs that are suggested from samples of files, without Spark."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
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

#: Without the time in the header: the processes of a test run must collect the same names.
PACKED = gzip.compress(b"id,n\n1,2\n", mtime=0)
PACKED_TWICE = gzip.compress(PACKED, mtime=0)


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


def _comments(text: str) -> str:
    return " ".join(line.partition("#")[2].strip() for line in text.splitlines() if "#" in line)


def test_suggestion_for_several_encodings_changes_no_text_and_names_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,Müller\n2,Öl\n")
    (tmp_path / "b.csv").write_bytes("id,name\n3,Müller\n".encode("windows-1252"))
    spec, text = suggested(tmp_path)
    assert options_of(spec) == {}
    assert f"{tmp_path}/a.csv is UTF-8, {tmp_path}/b.csv is windows-1252" in _comments(text)
    assert "1 of 3 sampled records are bad" in _comments(text)
    (tmp_path / "c.csv").write_bytes("id,name\n4,x\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"several encodings.*c\.csv is UTF-16"):
        suggested(tmp_path)


def test_suggestion_keeps_utf_8_for_a_file_with_a_damaged_record(tmp_path: Path) -> None:
    rows = b"".join(f"{number},caf\u00e9 {number}\n".encode() for number in range(20))
    (tmp_path / "a.csv").write_bytes(b"id,name\n" + rows + b"20,caf\xe9\n")
    spec, text = suggested(tmp_path)
    assert options_of(spec) == {}
    assert "1 of 21 sampled records are bad" in _comments(text)


def test_suggestion_takes_a_type_that_holds_the_values_of_all_typed_files(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"id": pa.array([1], pa.int8()), "n": pa.array([1], pa.int64()), "v": ["x"], "z": pa.nulls(1)}),
        tmp_path / "a.parquet",
    )
    pq.write_table(
        pa.table({"id": pa.array([1 << 40]), "n": pa.array([1], pa.int32()), "v": [1.5], "z": [1.5]}),
        tmp_path / "b.parquet",
    )
    spec, text = suggested(tmp_path)
    assert dict(spec.schema) == {"id": "bigint", "n": "bigint", "v": "string", "z": "double"}
    assert "the files have several types: int8, int64" in _comments(text)


def test_suggestion_reads_a_value_of_more_than_128_kilobytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,text\n1,{'x' * 200_000}\n2,y\n")
    _, text = suggested(tmp_path)
    assert "Suggested from 2 rows" in text
    assert "bad" not in text


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", PACKED, "compressed: add .gz to its name"),
        (
            "a.csv.gz",
            PACKED_TWICE,
            "compressed twice: unpacked, it is .gz again",
        ),
        ("a.csv", b"PK\x03\x04\x14\x00", "an archive .zip.: unpack it first"),
        ("a.json.gz", b'{"id":1}\n', "is named .gz but is not .gz"),
    ],
)
def test_suggestion_refuses_packed_bytes_as_text(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem):
        suggested(tmp_path)


def test_suggestion_does_not_take_a_header_without_a_name_for_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",fare\n0,2.5\n1,3.5\n")
    with pytest.raises(UserError, match=r"without a name: ',fare'\. Give each column"):
        suggested(tmp_path)
    (tmp_path / "a.csv").write_text("id,true,x\n1,a,b\n2,c,d\n")
    assert list(suggested(tmp_path)[0].schema) == ["id", "true", "x"]


def test_suggestion_is_not_sure_of_a_header_above_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("alice,berlin\nbob,paris\n")
    assert "not sure that the first record has the names" in _comments(suggested(tmp_path)[1])
    (tmp_path / "a.csv").write_text("name,n\nbob,1\n")
    assert "not sure that" not in _comments(suggested(tmp_path)[1])


def test_suggestion_is_not_sure_of_a_quote_that_an_open_quote_decided(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"abc\n2,def\n3,ghi\n')
    assert "not closed, such as '\"abc'" in _comments(suggested(tmp_path)[1])


def test_suggestion_names_numbers_that_are_ambiguous_or_rounded(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,a,b\n1,"1,234",12345678901234567.89\n2,"2,345",0.1\n')
    comments = _comments(suggested(tmp_path)[1])
    assert "comma may separate thousands or a fraction, such as '1,234'" in comments
    assert "a double rounds numbers such as '12345678901234567.89'" in comments


def test_suggestion_for_keys_of_json_that_differ_in_case_only(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id":1,"o":{"A":1,"a":2},"Name":"x","name":"y"}\n{"id":2,"NAME":"z","":1}\n')
    spec, text = suggested(tmp_path)
    assert dict(spec.schema) == {"id": "bigint", "o": "string", "Name": "string"}
    comments = _comments(text)
    assert "keys 'A' and 'a' differ in upper and lower case only" in comments
    assert "keys differ in upper and lower case only: 'Name', 'name', 'NAME'" in comments
    assert "a key without characters is no name of a column" in comments


def test_suggestion_leaves_out_the_meta_columns_of_hudi(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("_hoodie_commit_time,_hoodie_record_key,id\n1,a,x\n2,b,y\n")
    spec, text = suggested(tmp_path)
    assert (list(spec.schema), spec.record_key) == (["id"], ("id",))
    assert "left out, because each commit computes them: _hoodie_commit_time, _hoodie_record_key" in _comments(text)


def test_suggestion_explains_a_path_that_is_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "a.csv").write_text("id,n\n1,2\n")
    with pytest.raises(UserError, match=r"A path with '\[' is a pattern; the character itself is written \[\[\]"):
        suggested(f"{tmp_path}/a[1]/")
    assert list(suggested(f"{tmp_path}/a[[]1]/")[0].schema) == ["id", "n"]


def test_schema_of_a_spec_has_no_columns_that_differ_only_in_case() -> None:
    text = "table: t\nlocation: l\nrecord_key: [id]\nschema: {id: string, Name: string, name: int}\ningest: {path: l}\n"
    with pytest.raises(UserError, match="columns 'Name' and 'name' differ only in case"):
        parse_spec(text, source="t.yaml")


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
    assert "strings of name have space around them" in text.replace("\n# ", " ")


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
    assert main(["spec", "suggest", "landing/", "--to", "specs/my orders.yaml"]) == 0
    assert "lakehouse spec check 'specs/my orders.yaml'" in capsys.readouterr().out


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
