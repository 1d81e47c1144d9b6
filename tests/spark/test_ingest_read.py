"""Source files are read as rows; bad records are kept with their reason."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.rows.absent_columns import LACKS
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.sources.dead_letters import REFUSED, DeadLetterBox
from lakehouse.platform.sources.files.file_listing import FileSelection, list_source
from lakehouse.platform.sources.files.file_reader import open_batch
from lakehouse.platform.sources.source import Batch, KnownColumns
from lakehouse.spark.sources import schema_of_arrow
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import file_ingest
from tests.support.s3 import S3Server
from tests.support.typed_files import typed_file

pytestmark = pytest.mark.spark
_numbers = itertools.count(1)


class Landing:
    """A landing zone, local or on S3, and its directory of dead letters."""

    def __init__(self, spark: SparkSession, root: str, options: Mapping[str, str]) -> None:
        self.spark, self.root, self.options = spark, root, options
        self.files = open_storage(f"{root}/landing", options)
        self.box = DeadLetterBox(storage=open_storage(f"{root}/dead", options), folder="run", attempt="1")

    def read(
        self, known: pa.Schema | None = None, policy: SchemaPolicy | None = None, **ingest: Any
    ) -> tuple[list[dict[str, Any]], Batch]:
        """Return the good rows as mappings, sorted by their text, and the batch."""
        schema = ingest.pop("schema", {})
        key, ordering = ingest.pop("record_key", ("id",)), ingest.pop("ordering", ())
        path = f"{self.root}/landing/"
        spec = TableSpec(
            table="t",
            location="/nowhere",
            record_key=key,
            ordering=ordering,
            schema=schema,
            ingest=file_ingest(path=path, **ingest),
        )
        listing = list_source((path,), self.options)
        columns = None if known is None else schema_of_arrow(known)
        columns_known = KnownColumns(policy=policy or SchemaPolicy(), schema=columns, is_stored=known is not None)
        selection = FileSelection(storage=listing.storage, files=listing.files)
        with open_batch(self.spark, selection, spec, known=columns_known, dead_letters=self.box) as batch:
            assert batch is not None
            rows = [row.asDict(recursive=True) for row in batch.frame.drop(LACKS).collect()]
            assert len(rows) == batch.rows
            return sorted(rows, key=str), batch

    def letters(self) -> list[dict[str, str]]:
        """Return all dead letters, sorted by record."""
        files = self.box.storage.list(self.box.folder)
        lines = [line for file in files for line in self.box.storage.get(file.path).decode().splitlines()]
        return sorted((json.loads(line) for line in lines), key=lambda letter: str(letter["record"]))


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def landing(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Landing:
    if request.param == "local":
        return Landing(spark, str(tmp_path), {})
    server: S3Server = request.getfixturevalue("s3_server")
    return Landing(spark, f"s3://{server.bucket}/read-{next(_numbers)}", server.options)


IDS = {"id": "bigint", "name": "string"}


def test_json_lines_are_read_and_bad_ones_are_kept_unchanged(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "name": "x"}\n\n{"id": "no number", "name": "y"}\nnonsense\r\n{"id": 2}\n')
    landing.files.put("b.json.gz", gzip.compress('{"id": 3, "name": "z\u00e9"}\n{"name": "no key"}'.encode()))
    rows, batch = landing.read(schema=IDS, max_bad_records=3)
    assert rows == [{"id": 1, "name": "x"}, {"id": 2, "name": None}, {"id": 3, "name": "z\u00e9"}]
    assert batch.bad_records == 3
    root = landing.files.root
    assert {tuple(letter.values()) for letter in landing.letters()} == {
        ("no record key: id is null or empty", f"{root}/b.json.gz", '{"id":null,"name":"no key"}'),
        ("does not parse", f"{root}/a.json", "nonsense"),
        (
            "does not parse: column 'id': 'no number' is not a value of the declared type bigint; declare another "
            "type in 'schema'",
            f"{root}/a.json",
            '{"id": "no number", "name": "y"}',
        ),
    }


def drift(batch: Batch) -> dict[str, tuple[str, int]]:
    """Return the column drift between the files and the schema."""
    assert batch.columns is not None
    return {one.column: (str(one.change), one.rows) for one in batch.columns.drift}


def test_csv_columns_are_matched_by_the_header_of_each_file(landing: Landing) -> None:
    landing.files.put("a.csv", b"id,name,ts\r\n1,x,2026-01-01 10:00:00\r\n2,,2026-01-01 11:00:00\r\n")
    landing.files.put("b.csv.gz", gzip.compress(b'name,more,ID\n"a, b",q,3\n'))
    declared = {**IDS, "ts": "timestamp"}
    rows, batch = landing.read(format="csv", schema=declared, policy=SchemaPolicy(new_column="ignore"))
    assert [(row["id"], row["name"], str(row["ts"])) for row in rows] == [
        (1, "x", "2026-01-01 10:00:00"),
        (2, None, "2026-01-01 11:00:00"),
        (3, "a, b", "None"),
    ]
    assert drift(batch) == {"more": ("ignored", 1), "ts": ("nulled", 1)}
    rows, batch = landing.read(format="csv", schema=declared)
    assert [row["more"] for row in rows] == [None, None, "q"]
    assert batch.columns is not None
    assert batch.columns.lacking_rows == {"ts": 1, "more": 2}
    with pytest.raises(UserError, match=r"column 'more' of the files, such as .*b\.csv\.gz, is not among"):
        landing.read(format="csv", schema=declared, policy=SchemaPolicy(new_column="fail"))


def test_csv_lines_with_too_few_or_too_many_values_are_bad(landing: Landing) -> None:
    landing.files.put("a.csv", b"id,name\n1,x\n2\n3,y,z\nfour,w\n5,v\n")
    rows, batch = landing.read(format="csv", schema=IDS, max_bad_records=3)
    assert [row["id"] for row in rows] == [1, 5]
    assert batch.bad_records == 3
    assert [letter["record"] for letter in landing.letters()] == ["2", "3,y,z", "four,w"]


def test_csv_without_header_has_the_declared_columns_in_order(landing: Landing) -> None:
    landing.files.put("a.csv", b"1;NA\n2;x\n")
    rows, _ = landing.read(format="csv", schema=IDS, options={"header": "false", "sep": ";", "nullValue": "NA"})
    assert rows == [{"id": 1, "name": None}, {"id": 2, "name": "x"}]


@pytest.mark.parametrize("format", ["parquet", "orc", "avro"])
def test_files_of_typed_formats_have_their_own_columns(landing: Landing, format: str) -> None:
    for name, table in (
        (f"a.{format}", pa.table({"id": pa.array([1, None]), "name": ["x", "no key"]})),
        (f"b.{format}", pa.table({"id": [2], "name": ["y"], "more": pa.array([7], pa.int32())})),
    ):
        landing.files.put(name, typed_file(table, format))
    rows, batch = landing.read(format=format, max_bad_records=1)
    assert rows == [{"id": 1, "name": "x", "more": None}, {"id": 2, "name": "y", "more": 7}]
    assert batch.bad_records == 1
    assert landing.letters()[0]["record"] == '{"id":null,"name":"no key","more":null}'
    assert landing.letters()[0]["source_file"] == f"{landing.files.root}/a.{format}"
    landing.files.put(f"b.{format}", typed_file(pa.table({"id": ["two"]}), format))
    with pytest.raises(UserError, match=f"the {format} files do not agree on their columns"):
        landing.read(format=format)
    landing.files.put(f"b.{format}", typed_file(table, format)[:-9])
    with pytest.raises(UserError, match=rf"{landing.files.root}/b\.{format}|footer"):
        landing.read(format=format)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_undeclared_columns_are_inferred_with_a_warning(
    landing: Landing, caplog: pytest.LogCaptureFixture, format: str
) -> None:
    if format == "json":
        landing.files.put("a.json", b'{"id": 1, "name": "x"}\n{"id": 2, "price": 1.5}\n')
    else:
        landing.files.put("a.csv", b"id,name\n1,x\n")
        landing.files.put("b.csv", b"price,id\n1.5,2\n")
    with caplog.at_level(logging.WARNING):
        rows, batch = landing.read(format=format)
    # The record key of CSV keeps its text.
    first, second = (1, 2) if format == "json" else ("1", "2")
    assert rows == [{"id": first, "name": "x", "price": None}, {"id": second, "name": None, "price": 1.5}]
    assert {column.name for column in batch.schema} == {"id", "name", "price"}
    assert "columns and types were inferred" in caplog.text
    assert "price: double" in caplog.text


def test_unknown_columns_are_found_in_all_records_and_read_or_counted(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "name": "x"}\n{"id": 2, "late": true, "never": null}\n{"id": 4, "in": 1}\n')
    landing.files.put("b.json", b'{"id": 3, "s": {"a": 1, "b": 2}}\n')
    known = pa.schema([("id", pa.int64()), ("name", pa.string()), ("s", pa.struct([("a", pa.int64())]))])
    rows, batch = landing.read(known)
    assert {row["id"]: row["late"] for row in rows} == {1: None, 2: True, 3: None, 4: None}
    assert [row["s"] for row in rows if row["id"] == 3] == [{"a": 1, "b": 2}]
    assert set(batch.schema.names) == {"id", "name", "s", "late", "in"}, "no record has a value for 'never'"
    assert batch.columns is not None and batch.columns.lacking_rows["name"] == 1
    rows, batch = landing.read(known, SchemaPolicy(new_column="ignore"))
    assert set(rows[0]) == {"id", "name", "s"}
    assert drift(batch)["s.b"][0] == drift(batch)["late"][0] == "ignored"


def test_json_records_without_a_field_of_their_file_are_counted_by_column(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "x": 1}\n{"id": 2, "y": "b"}\n{"id": 3, "x": null, "y": "c"}\nbad\n')
    landing.files.put("b.json", b'{"id": 4, "x": 4, "y": "d"}\n{"id": 5, "y": "e"}\n')
    known = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("y", pa.string())])
    _, batch = landing.read(known, max_bad_records=1)
    assert batch.columns is not None
    assert (batch.columns.nulled_rows, batch.columns.lacking_rows) == ({"x": 2, "y": 1}, {})
    _, batch = landing.read(known, select=("id", "x + 1 as next", "id as other"), max_bad_records=1)
    assert batch.columns is not None
    assert batch.columns.nulled_rows == {"next": 2}
    _, batch = landing.read(schema={"id": "bigint", "x": "bigint", "y": "string"}, max_bad_records=1)
    assert drift(batch) == {"x": ("nulled", 2), "y": ("nulled", 1)}, "the first rows of a table are counted too"


def test_json_column_that_differs_only_in_case_is_refused(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "NAME": "x"}\n')
    known = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pytest.raises(UserError, match=r"column 'NAME' of the files, such as .*a\.json, differs from 'name'"):
        landing.read(known)
    rows, batch = landing.read(known, SchemaPolicy(new_column="ignore"))
    assert (rows, drift(batch)) == ([{"id": 1}], {"NAME": ("ignored", 1)})


def test_parquet_files_with_different_nested_fields_are_read_together(landing: Landing) -> None:
    for name, table in (
        ("a.parquet", pa.table({"id": [1], "s": [{"p": 1, "q": "a"}], "l": [[{"p": 1}]]})),
        ("b.parquet", pa.table({"id": [2, 3], "s": [{"p": 2}, None], "l": [[{"p": 2, "q": "b"}], None]})),
    ):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        landing.files.put(name, sink.getvalue().to_pybytes())
    rows, batch = landing.read(format="parquet")
    assert rows == [
        {"id": 1, "s": {"p": 1, "q": "a"}, "l": [{"p": 1, "q": None}]},
        {"id": 2, "s": {"p": 2, "q": None}, "l": [{"p": 2, "q": "b"}]},
        {"id": 3, "s": None, "l": None},
    ]
    assert drift(batch) == {"s.q": ("nulled", 2), "l.element.q": ("nulled", 1)}


def test_selection_of_missing_columns_is_missing_too(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "name": "a b", "n": 1}\n')
    landing.files.put("b.json", b'{"id": 2, "n": 2}\n')
    known = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64())])
    _, batch = landing.read(known, select=("id", "split(name, ' ')[0] as first", "n + 1 as next"))
    assert batch.columns is not None
    assert batch.columns.lacking_rows == {"first": 1}
    landing.files.put("c.json", b'{"id": 3, "n": 2, "new": 1}\n')
    _, batch = landing.read(known, select=("id", "n"))
    assert drift(batch) == {"new": ("ignored", 1)}


def test_file_without_the_ordering_column_is_refused(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "name": "x"}\n')
    landing.files.put("b.json", b'{"id": 2}\n')
    with pytest.raises(UserError, match=r"b\.json lacks the column 'name'"):
        landing.read(schema=IDS, ordering=("name",))
    rows, _ = landing.read(schema=IDS, ordering=("name",), policy=SchemaPolicy(missing_column="null"))
    assert [row["name"] for row in rows] == ["x", None]


def test_select_computes_columns_that_may_be_keys(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "name": "a b"}\n{"id": 2, "name": null}\n')
    select = ("*", "split(name, ' ')[0] as first", "id + 1 as next")
    rows, batch = landing.read(schema=IDS, select=select, record_key=("first",), max_bad_records=1)
    assert rows == [{"id": 1, "name": "a b", "first": "a", "next": 2}]
    assert batch.bad_records == 1
    rows, _ = landing.read(schema=IDS, select=("id as key",), record_key=("key",))
    assert rows == [{"key": 1}, {"key": 2}]


def test_record_with_several_key_columns_is_bad_only_if_all_are_empty(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1, "name": null}\n{"id": null, "name": "x"}\n{"id": null, "name": ""}\n')
    rows, batch = landing.read(schema=IDS, record_key=("id", "name"), max_bad_records=1)
    assert [(row["id"], row["name"]) for row in rows] == [(1, None), (None, "x")]
    assert batch.bad_records == 1


def test_too_many_bad_records_fail_the_run_and_show_an_example(landing: Landing) -> None:
    landing.files.put("a.json", b'{"id": 1}\n{"id": }\n')
    with pytest.raises(UserError) as raised:
        landing.read(schema=IDS)
    message = str(raised.value)
    assert "1 bad record, max_bad_records is 0; nothing was written" in message
    assert f"does not parse, in {landing.files.root}/a.json: '{{\"id\": }}'" in message
    assert message.endswith(landing.box.url_of(REFUSED))
    assert [letter["record"] for letter in landing.letters()] == ['{"id": }']


@pytest.mark.parametrize(
    ("ingest", "message"),
    [
        ({"options": {"headr": "true"}, "format": "csv"}, "'headr' is not an option of the csv reader.*'header'"),
        ({"options": {"mode": "DROPMALFORMED"}}, "'mode' cannot be set: max_bad_records"),
        ({"schema": {"id": "bigin"}}, "column 'id' has the type 'bigin'"),
        ({"schema": IDS, "select": ("*", "nam as x")}, r"ingest.select: 'nam as x': .*nam.*cannot be resolved"),
        ({"schema": IDS, "select": ("id +",)}, r"ingest.select: 'id \+'"),
        ({"schema": IDS, "record_key": ("nam",)}, "record key column 'nam' is not among.*Did you mean 'name'"),
    ],
)
def test_spec_that_does_not_fit_the_files_is_refused(
    spark: SparkSession, tmp_path: Path, ingest: dict[str, Any], message: str
) -> None:
    landing = Landing(spark, str(tmp_path), {})
    landing.files.put("a", b"id,name\n1,x\n" if ingest.get("format") == "csv" else b'{"id": 1}\n')
    with pytest.raises(UserError, match=message):
        landing.read(**ingest)


def test_truncated_gzip_file_is_named(landing: Landing) -> None:
    lines = b"".join(b'{"id": %d, "name": "%d"}\n' % (n, n * 7919 % 10007) for n in range(50_000))
    landing.files.put("good.json", lines)
    landing.files.put("short.json.gz", gzip.compress(lines)[:-20_000])
    with pytest.raises(UserError, match=r"short\.json\.gz"):
        landing.read(schema=IDS)


@pytest.mark.parametrize("name", ["a b%20c[1]{x}+.json", "2026-01-01T10:00:00.json", "dir=1/é*?.json", "x:y.csv"])
def test_file_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    landing = Landing(spark, str(tmp_path), {})
    is_csv = name.endswith("csv")
    landing.files.put(name, b"id,name\n1,x\n,y\n" if is_csv else b'{"id": 1, "name": "x"}\n{"name": "y"}\n')
    rows, _ = landing.read(schema=IDS, format="csv" if is_csv else "json", max_bad_records=1)
    assert rows == [{"id": 1, "name": "x"}]
    assert landing.letters()[0]["source_file"] == f"{tmp_path}/landing/{name}"


@pytest.mark.parametrize("options", [{}, {"multiLine": "true"}])
def test_records_that_span_lines_are_read_from_every_storage(landing: Landing, options: dict[str, str]) -> None:
    landing.files.put("a.csv", b'id,name\n1,"two\nlines"\n')
    rows, _ = landing.read(format="csv", schema=IDS, options=options)
    assert rows == [{"id": 1, "name": "two\nlines"}]
