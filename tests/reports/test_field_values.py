"""Texts of fields: a value accounts for its text, or the record is bad and its text is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.cli.main import main
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import DEAD_LETTERS, run_ingest
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand, ReplayCommand
from lakehouse.spec.table.table_spec import TableSpec
from tests.kafka.test_kafka_runs import Topic
from tests.support.file_ingest import changed_ingest, file_ingest
from tests.support.kafka import Broker

pytestmark = pytest.mark.spark
KINDS = {
    "n": "int",
    "d": "double",
    "m": "decimal(10,2)",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "yes": "boolean",
}
#: By column, texts with their value, and bad texts.
GOOD: dict[str, dict[str, Any]] = {
    "n": {"-12": -12},
    "d": {"0.5": 0.5, "1e-3": 0.001, "9007199254740992": 2.0**53},
    "m": {"12.50": Decimal("12.50"), "12.500": Decimal("12.50"), "1.25E1": Decimal("12.50")},
    "day": {"2026-01-31": "2026-01-31"},
    "at": {"2026-01-31T10:00:00.120000+01:00": "2026-01-31 09:00:00.120000", "2026-01-31": "2026-01-31 00:00:00"},
    "local": {"2026-01-31 10:00": "2026-01-31 10:00:00"},
    "yes": {"true": True},
}
BAD = {
    "n": ["1.0", "3000000000", "1_000", "\u0663"],
    "d": ["12D", "0x1p3", "1e400", "9007199254740993"],
    "m": ["12,50", "1,250.00", "1.255", "1.2345E1", "123456789.5"],
    "day": ["2026-1", "2026", "2026-01-31 10:00", "2026-02-30", "0000-01-01", "12345-01-01"],
    "at": ["12:30:00", "2026-1", "2026-01-31 10", "1769850000000", "2026-01-31 10:00:00.123456789", "12345-01-01"],
    "local": ["2026-01-31 10:00:00+05:00"],
    "yes": ["1", "yes"],
}
#: Texts that are no tokens of JSON.
NO_JSON = ("1_000", "\u0663", "12D", "0x1p3", "yes")
#: Columns whose values are numbers in JSON.
NUMBERS = ("n", "d", "yes")


class Lake:
    """A landing zone and a table that ingests it."""

    def __init__(self, spark: SparkSession, root: Path, **ingest: Any) -> None:
        self.spark, self.root = spark, root
        schema, key = ingest.pop("schema", {}), ingest.pop("record_key", ("id",))
        self.spec = TableSpec(
            table="t",
            location=str(root / "table"),
            record_key=key,
            schema=schema,
            ingest=file_ingest(path=f"{root}/landing/", **ingest),
        )

    def land(self, name: str, text: str) -> None:
        """Write a file."""
        (self.root / "landing").mkdir(exist_ok=True)
        (self.root / "landing" / name).write_text(text)

    def change(self, **settings: Any) -> None:
        """Change settings of the table, or of its `ingest` section."""
        schema = settings.pop("schema", self.spec.schema)
        self.spec = replace(self.spec, schema=schema, ingest=changed_ingest(self.spec.ingest, **settings))

    def run(self) -> IngestReport:
        """Run the ingestion once."""
        return run_ingest(self.spark, self.spec, IngestCommand(table="x"), environ={})

    def replay(self) -> IngestReport:
        """Replay the dead letters of all commits."""
        return run_replay(self.spark, self.spec, ReplayCommand(table="x"), environ={})

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table, sorted by key."""
        names = [name for name in Table.open(self.spec.location).schema.names if not name.startswith("_hoodie_")]
        rows = Table.open(self.spec.location).scan(columns=names).to_arrow().to_pylist()
        return sorted(rows, key=lambda row: str(row[self.spec.record_key[0]]))

    def letters(self) -> dict[str, str]:
        """Return the reasons of all dead letters by record."""
        store = open_storage(f"{self.spec.location}_dead_letters")
        lines = [line for file in store.list("") for line in store.get(file.path).decode().splitlines()]
        return {letter["record"]: letter["reason"] for letter in map(json.loads, lines)}


def as_json(number: int, name: str, text: str) -> str:
    """Return a record of JSON with one value; numbers and booleans are written without quotes."""
    value = text if name in NUMBERS else json.dumps(text)
    return f'{{"id": "{number}", "{name}": {value}}}'


def as_csv(number: int, name: str, text: str) -> str:
    """Return a record of CSV with one value."""
    return ";".join([str(number), *(text if column == name else "" for column in KINDS)])


@pytest.mark.parametrize("format", ["csv", "json"])
def test_values_account_for_their_texts_or_the_record_is_bad(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """apache/spark#24437, databricks/spark-csv#460, apache/spark#7353, josdejong/lossless-json#266."""
    sep = {"sep": ";"} if format == "csv" else {}
    lake = Lake(
        spark, tmp_path, schema={"id": "string", **KINDS}, format=format, options=sep, max_bad_records=len(BAD) * 9
    )
    good = [(name, text) for name, texts in GOOD.items() for text in texts]
    bad = [(name, text) for name, texts in BAD.items() for text in texts]
    if format == "json":
        bad = [one for one in bad if one[1] not in NO_JSON]
    write = as_csv if format == "csv" else as_json
    lines = [write(number, *one) for number, one in enumerate(good)]
    bad_lines = [write(number, *one) for number, one in enumerate(bad, len(good))]
    header = [f"id;{';'.join(KINDS)}"] if format == "csv" else []
    lake.land(f"a.{format}", "\n".join([*header, *lines, *bad_lines]) + "\n")
    report = lake.run()
    rows = {int(row["id"]): row for row in lake.rows()}
    assert (set(rows), report.bad_records) == (set(range(len(good))), len(bad))
    values = [str(rows[number][name]).removesuffix("+00:00") for number, (name, _) in enumerate(good)]
    assert values == [str(GOOD[name][text]) for name, text in good]
    reasons = lake.letters()
    for line, (name, text) in zip(bad_lines, bad, strict=True):
        expected = f"does not parse: column {name!r}: '{text}' is not a value of the declared type {KINDS[name]}"
        assert reasons[line].startswith(f"{expected}; declare another type in 'schema'")


def test_bad_values_inside_of_columns_make_the_record_bad(spark: SparkSession, tmp_path: Path) -> None:
    """apache/spark#24437: a list, a struct and a map contain the values that a column of its own refuses."""
    kinds = {"a": "array<decimal(10,2)>", "s": "struct<at: timestamp, n: tinyint>", "m": "map<string, date>"}
    lake = Lake(spark, tmp_path, schema={"id": "string", **kinds}, max_bad_records=9)
    bad = [
        '{"id": "a", "a": ["1.5", "12,50"]}',
        '{"id": "b", "s": {"at": "12:30"}}',
        '{"id": "c", "s": {"n": 200}}',
        '{"id": "d", "m": {"x": "2026-1"}}',
    ]
    good = '{"id": "e", "a": [1.50, null], "s": {"at": "2026-01-31T10:00:00Z", "n": -100}, "m": {"x": "2026-01-31"}}'
    lake.land("a.json", "\n".join([*bad, good]) + "\n")
    lake.run()
    (row,) = lake.rows()
    assert (row["a"], row["s"]["n"], str(dict(row["m"])["x"])) == ([Decimal("1.50"), None], -100, "2026-01-31")
    assert set(lake.letters()) == set(bad)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_spark_decides_about_values_if_the_spec_does_not_check_them(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """databricks/spark-csv#460: the check may be left out for its cost; records that do not parse stay bad."""
    sep = {"sep": ";"} if format == "csv" else {}
    kinds = {"id": "string", "m": "decimal(10,2)", "n": "int", "a": "string"}
    lake = Lake(spark, tmp_path, schema=kinds, format=format, options=sep, max_bad_records=9, check_values=False)
    records = [("a", "12,50", 1, "x"), ("b", "1.255", 2, "true"), ("c", "1.5", "many", "y")]
    if format == "csv":
        lines = ["id;m;n;a", *(";".join(map(str, record)) for record in records), '"d;1;1;x']
    else:
        lines = [*(json.dumps(dict(zip(kinds, record, strict=True))) for record in records), '{"id": "d"} x']
    lake.land(f"a.{format}", "\n".join(lines) + "\n")
    lake.run()
    found = [(row["id"], row["m"], row["n"], row["a"]) for row in lake.rows()]
    assert found == [("a", Decimal("1250.00"), 1, "x"), ("b", Decimal("1.26"), 2, "true")]
    assert [*lake.letters()] == lines[-2:]


def test_numbers_use_the_separators_of_the_option_locale(spark: SparkSession, tmp_path: Path) -> None:
    """databricks/spark-csv#460, databricks/spark-csv#351: a decimal comma is read if the spec says so."""
    options = {"sep": ";", "locale": "de-DE"}
    kinds = {"id": "string", "m": "decimal(10,2)", "d": "double"}
    lake = Lake(spark, tmp_path, schema=kinds, format="csv", options=options, max_bad_records=9)
    lake.land("a.csv", "id;m;d\na;1.250,50;0,5\nb;12.50;1\n")
    lake.run()
    assert [(row["m"], row["d"]) for row in lake.rows()] == [(Decimal("1250.50"), 0.5)]
    assert list(lake.letters()) == ["b;12.50;1"]


def test_replay_and_file_read_a_number_as_the_same_string(spark: SparkSession, tmp_path: Path) -> None:
    """nlohmann/json#799: the digits of a number in a column of strings are those of the text."""
    lake = Lake(spark, tmp_path, schema={"id": "string", "n": "int"}, max_bad_records=9)
    lake.land("a.json", '{"id": 100.10, "n": 1}\n{"id": 100.1, "n": 2}\n{"id": 100.100, "n": 3.5}\n')
    lake.run()
    assert [row["id"] for row in lake.rows()] == ["100.1", "100.10"]
    lake.change(schema={"id": "string", "n": "double"}, type_change="promote")
    assert lake.replay().rows == 1
    assert [(row["id"], row["n"]) for row in lake.rows()] == [("100.1", 2), ("100.10", 1), ("100.100", 3.5)]


KEYS = {
    "csv": ("id,v\n007,a\n7,b\n1.10,c\n1.1,d\n", ["007", "1.1", "1.10", "7"]),
    "codes": ("id,v\n12D,a\n12.0,b\n", ["12.0", "12D"]),
    "long": (f"id,v\n{'1' * 39},a\n{'1' * 38}2,b\n", ["1" * 39, "1" * 38 + "2"]),
    "days": ("id,v\n2026-01-01,a\n2026-1-1,b\n", ["2026-01-01", "2026-1-1"]),
    "json": ('{"id": 1.10, "v": "a"}\n{"id": 1.1, "v": "b"}\n', ["1.1", "1.10"]),
}


@pytest.mark.parametrize("case", list(KEYS))
def test_keys_of_an_inferred_type_stay_different(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """wireservice/csvkit#977, brimdata/super#2315: a type that is inferred must not change an identifier."""
    text, keys = KEYS[case]
    lake = Lake(spark, tmp_path, format="json" if case == "json" else "csv")
    lake.land("a.csv", text)
    lake.run()
    assert [row["id"] for row in lake.rows()] == keys


def test_keys_of_json_stay_integers_if_all_are_integers(spark: SparkSession, tmp_path: Path) -> None:
    """wireservice/csvkit#977: an integer of JSON has one notation, so it is no other key."""
    lake = Lake(spark, tmp_path, max_bad_records=9)
    lake.land("a.json", '{"id": 7}\n{"id": 12345678901234567890123}\n')
    lake.run()
    lake.land("b.json", '{"id": "007"}\n{"id": 7.0}\n')
    lake.run()
    assert [int(row["id"]) for row in lake.rows()] == [12345678901234567890123, 7]
    assert set(lake.letters()) == {'{"id": "007"}', '{"id": 7.0}'}


def test_columns_from_which_a_key_is_computed_keep_their_text(spark: SparkSession, tmp_path: Path) -> None:
    """wireservice/csvkit#977: a selection gives the key another name."""
    lake = Lake(spark, tmp_path, format="csv", record_key=("code",), select=("trim(ID) AS code", "n"))
    lake.land("a.csv", "id,n\n007,1\n7,2\n")
    lake.run()
    assert [(row["code"], row["n"]) for row in lake.rows()] == [("007", 1), ("7", 2)]


def test_key_of_an_earlier_inferred_number_refuses_other_notations(spark: SparkSession, tmp_path: Path) -> None:
    """wireservice/csvkit#977: a table whose key is a number already, without a declared type."""
    lake = Lake(spark, tmp_path, schema={"id": "int", "v": "string"}, format="csv", max_bad_records=9)
    lake.land("a.csv", "id,v\n7,a\n")
    lake.run()
    lake.change(schema={})
    lake.land("b.csv", "id,v\n007,b\n8,c\n")
    assert (lake.run().bad_records, [row["id"] for row in lake.rows()]) == (1, [7, 8])
    (reason,) = lake.letters().values()
    assert "column 'id': '007' would be the key 7; declare the type of the record key in 'schema'" in reason
    lake.change(schema={"id": "int"})
    assert lake.replay().rows == 1
    assert [(row["id"], row["v"]) for row in lake.rows()] == [(7, "b"), (8, "c")]


def test_inferred_types_are_those_whose_notation_every_text_has(spark: SparkSession, tmp_path: Path) -> None:
    """apache/spark#7353, brimdata/super#2315: the type of a column says nothing that its texts do not say."""
    columns = {
        "zip": ("01220", "94107", "string"),
        "time": ("12:30:00", "23:59", "string"),
        "month": ("2026-1", "2026-12", "string"),
        "code": ("12D", "3F", "string"),
        "sum": ("9007199254740993", "0.5", "string"),
        "count": ("1", "-3000000000", "int64"),
        "share": ("0.50", "1e-3", "double"),
        "day": ("2026-01-31", "2026-02-01", "date32[day]"),
        "at": ("2026-01-31", "2026-01-31 10:00:00", "timestamp[us, tz=UTC]"),
        "yes": ("true", "FALSE", "bool"),
        "big": ("1" * 20, "1", "decimal128(20, 0)"),
    }
    lake = Lake(spark, tmp_path, format="csv")
    lines = [",".join(["id", *columns])]
    lines += [",".join([f"k{place}", *(texts[place] for texts in columns.values())]) for place in (0, 1)]
    lake.land("a.csv", "\n".join(lines) + "\n")
    lake.run()
    schema = Table.open(lake.spec.location).schema
    assert {name: str(schema.field(name).type) for name in columns} == {name: c[2] for name, c in columns.items()}


@pytest.mark.parametrize("format", ["csv", "json"])
def test_broken_value_does_not_make_other_values_of_its_column_bad(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """dask/dask#2522, apache/texera#6279: an integer column gets a fraction and a text that is no number."""
    rows: list[list[tuple[str, str]]] = [[("a", "1")], [("b", "0.5"), ("c", "x")]]
    # Integers of JSON are bigint, and a bigint may lose digits as a double.
    lake = Lake(
        spark, tmp_path, format=format, max_bad_records=9, type_change={"csv": "promote", "json": "lossy"}[format]
    )
    for place, records in enumerate(rows):
        lines = [f"{key},{v}" for key, v in records]
        if format == "json":
            lines = [f'{{"id": "{key}", "v": {v if v != "x" else json.dumps(v)}}}' for key, v in records]
        lake.land(f"{place}.{format}", "\n".join([*(["id,v"] if format == "csv" else []), *lines]) + "\n")
        report = lake.run()
    assert (report.rows, report.bad_records) == (1, 1)
    assert [(row["id"], row["v"]) for row in lake.rows()] == [("a", 1.0), ("b", 0.5)]
    (reason,) = lake.letters().values()
    assert reason.startswith("does not parse: column 'v': 'x' is not a value of the inferred type double;")


def test_error_about_bad_records_names_column_value_type_and_remedy(spark: SparkSession, tmp_path: Path) -> None:
    """pandas-dev/pandas#53966: the message is enough to correct the spec, and the correction works."""
    lake = Lake(spark, tmp_path, format="csv")
    lake.land("a.csv", "id,wind_dir\na,270\n")
    lake.run()
    lake.land("b.csv", "id,wind_dir\nb,NA\n")
    with pytest.raises(UserError) as error:
        lake.run()
    message = str(error.value)
    assert "column 'wind_dir': 'NA' is not a value of the inferred type int" in message
    assert "options: {nullValue: 'NA'} if it means no value" in message
    lake.change(options={"nullValue": "NA"})
    lake.run()
    assert [row["wind_dir"] for row in lake.rows()] == [270, None]


def test_flags_of_other_systems_are_refused_with_their_conversion(spark: SparkSession, tmp_path: Path) -> None:
    """pandas-dev/pandas#53966: `t` is a value, so the advice to read it as null would lose it."""
    lake = Lake(spark, tmp_path, format="csv", schema={"id": "string", "paid": "boolean"}, max_bad_records=9)
    lake.land("a.csv", "id,paid\na,true\nb,t\nc,YES\nd,NA\n")
    assert lake.run().bad_records == 3
    reasons = {record[0]: reason for record, reason in lake.letters().items()}
    for key in "bc":
        assert "nullValue" not in reasons[key]
        assert "declare another type in 'schema', such as string, and convert it in 'select': paid IN" in reasons[key]
    assert "options: {nullValue: 'NA'} if it means no value" in reasons["d"]


def test_leading_zeros_are_not_lost_in_columns_of_inferred_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """wireservice/csvkit#977: the first file has no zeros, so the column became a number, and `007` became 7."""
    lake = Lake(spark, tmp_path, format="csv", max_bad_records=9)
    lake.land("a.csv", "id,zip,x\na,270,0.5\nb,0,-0.5\n")
    lake.run()
    lake.land("b.csv", "id,zip,x\nc,007,1\nd,8,00.5\n")
    lake.change(type_change="promote")
    assert (lake.run().bad_records, [row["zip"] for row in lake.rows()]) == (2, [270, 0])
    assert all("would lose its zeros in the inferred type" in reason for reason in lake.letters().values())
    lake.change(schema={"zip": "int", "x": "double"})
    assert lake.replay().rows == 2
    assert [(row["zip"], row["x"]) for row in lake.rows()] == [(270, 0.5), (0, -0.5), (7, 1.0), (8, 0.5)]


def test_tokens_of_json_that_are_no_numbers_are_values_of_doubles(spark: SparkSession, tmp_path: Path) -> None:
    """pandas-dev/pandas#12213: Python writes NaN and Infinity without quotes; each such record was bad."""
    lake = Lake(spark, tmp_path)
    lake.land("a.json", '{"id": "a", "x": NaN, "s": {"y": -Infinity}}\n{"id": "b", "x": 0.5, "s": {"y": 1.5}}\n')
    assert lake.run().bad_records == 0
    rows = lake.rows()
    assert [str(row["x"]) for row in rows] == ["nan", "0.5"] and [row["s"]["y"] for row in rows] == [float("-inf"), 1.5]


def test_pattern_without_a_day_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """apache/spark#7353: a pattern of a time of day would be a time in 1970."""
    kinds = {"id": "string", "at": "timestamp", "day": "date"}
    lake = Lake(spark, tmp_path, schema=kinds, format="csv", options={"timestampFormat": "HH:mm:ss"}, max_bad_records=9)
    lake.land("a.csv", "id,at,day\na,31.01.2026 10:00,31/1/2026\nb,31.01.2026 10:00 CET,1/2/2026\nc,,31/1\n")
    with pytest.raises(UserError, match="timestampFormat: 'HH:mm:ss' has no year, month and day"):
        lake.run()
    lake.change(options={"timestampFormat": "dd.MM.yyyy HH:mm", "dateFormat": "d/M/yyyy"})
    lake.run()
    assert [(str(row["at"]), str(row["day"])) for row in lake.rows()] == [("2026-01-31 10:00:00+00:00", "2026-01-31")]
    assert len(lake.letters()) == 2


def test_debezium_values_account_for_their_texts(spark: SparkSession, tmp_path: Path) -> None:
    """apache/spark#24437, vertica/vertica-python#86: events have the rules of other JSON, and units of times."""
    kinds = {"id": "bigint", "m": "decimal(30,2)", "at": "timestamp", "day": "date", "s": "string"}
    schema = {**kinds, "_change_operation_type": "string"}
    lake = Lake(spark, tmp_path, schema=schema, format="debezium", max_bad_records=9)
    good = [
        '{"id": 1, "m": 12345678901234567890.12, "s": 1.10}',
        '{"id": 2, "m": "12.50", "at": "2026-01-31T10:00:00Z", "day": 20484, "s": "1.1"}',
    ]
    bad = [
        '{"id": 3, "m": "12,50"}',
        '{"id": 4, "m": 1.255}',
        '{"id": 5, "at": "12:30:00"}',
        '{"id": 6, "day": "2026-1"}',
        '{"id": 7, "day": 99999999}',
        '{"id": 8, "at": 1769850000000}',
        '{"id": "9"}',
    ]
    lake.land("a.json", "".join(f'{{"op": "c", "after": {row}}}\n' for row in [*good, *bad]))
    lake.spec = replace(lake.spec, delete_field="_change_operation_type", delete_marker="d")
    lake.run()
    rows = lake.rows()
    assert [(row["id"], row["m"], row["s"], str(row["day"])) for row in rows] == [
        (1, Decimal("12345678901234567890.12"), "1.10", "None"),
        (2, Decimal("12.50"), "1.1", "2026-01-31"),
    ]
    assert set(lake.letters()) == {f'{{"op": "c", "after": {row}}}' for row in bad}


def test_read_prints_values_that_python_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vertica/vertica-python#86: another writer stored the year 58058."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id")
    micros = pa.array([1769850000000 * 1_000_000, 0, None], pa.int64())
    columns = {
        "id": pa.array(["a", "b", "c"]),
        "at": micros.cast(pa.timestamp("us", "UTC")),
        "day": pa.array([-719_163, 0, None], pa.int32()).cast(pa.date32()),
    }
    columns["inner"] = pa.StructArray.from_arrays([columns["at"], columns["day"]], names=["at", "day"])
    table.upsert(pa.table(columns))
    main(["table", "read", "--table", str(tmp_path / "t"), "--output", "json"])
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["a"]["at"], rows["a"]["day"]) == ("58054-04-25 00:00:00.000000+00:00", "0000-12-31")
    assert rows["a"]["inner"] == {"at": rows["a"]["at"], "day": rows["a"]["day"]}
    assert (rows["b"]["at"], rows["b"]["day"], rows["c"]["at"]) == ("1970-01-01 00:00:00+00:00", "1970-01-01", None)


def test_values_of_messages_account_for_their_texts(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """apache/spark#24437, nlohmann/json#799, vertica/vertica-python#86: messages have the rules of files."""
    topic = Topic(spark, kafka, tmp_path, partitions=1)
    kinds = {"id": "string", "m": "decimal(10,2)", "at": "timestamp", "d": "double", "n": "tinyint"}
    topic.spec = replace(topic.spec, schema=kinds)
    topic.change(max_bad_records=20)
    good = ['{"id": 100.10, "m": 1.500}', '{"id": 100.1, "n": -5}', '{"id": "a", "at": "2026-01-31T10:00:00Z", "d": 1}']
    bad = [
        '{"id": "x", "m": "12,50"}',
        '{"id": "x", "m": 1.255}',
        '{"id": "x", "at": "12:30:00"}',
        '{"id": "x", "at": 1769850000000}',
        '{"id": "x", "at": "0000-01-01T00:00:00Z"}',
        '{"id": "x", "d": 9007199254740993}',
        '{"id": "x", "d": 1e999}',
        '{"id": "x", "n": 200}',
    ]
    topic.send(*good, *bad)
    report = topic.run()
    assert (report.rows, report.bad_records) == (len(good), len(bad))
    rows = topic.table.scan(columns=["id", "m", "n", "d"]).to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["m"], row["n"], row["d"]) for row in rows] == [
        ("100.1", None, -5, None),
        ("100.10", Decimal("1.50"), None, None),
        ("a", None, None, 1.0),
    ]
    store = open_storage(topic.extra()[DEAD_LETTERS])
    letters = [json.loads(line) for file in store.list("") for line in store.get(file.path).decode().splitlines()]
    assert {letter["record"] for letter in letters} == set(bad)
    assert all(" is not a value of the declared type " in letter["reason"] for letter in letters)
