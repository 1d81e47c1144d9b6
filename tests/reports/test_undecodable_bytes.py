"""Bytes that are not text in the declared encoding: a bad record, and never a replacement character in a key."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.kafka import Broker, Message
from tests.support.text_landing import TextLanding

pytestmark = pytest.mark.spark
#: Three keys of Latin-1. Spark's reader of CSV replaces the last byte of each by U+FFFD, so they were one key.
KEYS = (b"k\xe4", b"k\xf6", b"k\xfc")
EVENT = b'{"after": {"id": "%b", "n": "x"}, "op": "c"}'
FORMATS: dict[str, tuple[bytes, bytes]] = {
    "csv": (b"id,n\n", b"%b,x\n"),
    "json": (b"", b'{"id": "%b", "n": "x"}\n'),
    "debezium": (b"", EVENT + b"\n"),
}


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> TextLanding:
    return TextLanding(spark, tmp_path)


def schema_of(format: str) -> dict[str, str]:
    columns = {"id": "string", "n": "string"}
    return columns | ({"_change_operation_type": "string"} if format == "debezium" else {})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_records_that_are_not_utf8_are_bad_records(
    landing: TextLanding, format: str, packed: Callable[[bytes], bytes]
) -> None:
    """lakehq/sail#2388: Spark reads bytes that are not UTF-8 as U+FFFD."""
    head, line = FORMATS[format]
    text = head + b"".join(line % key for key in (b"k\xc3\xa4", *KEYS))
    landing.put("a.gz" if packed is gzip.compress else "a", packed(text))
    report = landing.ingest(schema_of(format), format=format, max_bad_records=3)
    assert (report.rows, report.bad_records) == (1, 3)
    assert landing.rows() == [("kä", "x")]


def test_dead_letters_have_the_bytes_and_are_replayed_in_the_declared_encoding(landing: TextLanding) -> None:
    """lakehq/sail#2388: three keys became one row; a replay of texts with U+FFFD would repeat that."""
    landing.put("a.csv", b"id,n\n" + b"".join(b"%b,x\n" % key for key in KEYS))
    assert landing.refusal(format="csv").count("does not parse") == 1
    landing.put("b.csv", b"id,n\ngood,x\n")
    assert landing.ingest(format="csv", max_bad_records=3).rows == 1
    files = [file for file in (landing.root / "table_dead_letters").rglob("*.json") if "refused" not in str(file)]
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {base64.b64decode(letter["value"]) for letter in letters} == {key + b",x" for key in KEYS}
    assert landing.ingest(action="replay", format="csv", max_bad_records=3).bad_records == 3
    again = landing.ingest(action="replay", format="csv", options={"encoding": "ISO-8859-1"}, max_bad_records=3)
    assert (again.rows, again.bad_records) == (3, 0)
    assert landing.rows("id") == [("good",), ("kä",), ("kö",), ("kü",)]


@pytest.mark.parametrize("encoding", ["windows-1252", "UTF-16", "UTF-16LE", "Shift_JIS"])
def test_declared_encodings_are_decoded_exactly(landing: TextLanding, encoding: str) -> None:
    """lakehq/sail#2388: lines of UTF-16 were divided inside of a character."""
    text = 'id,n\r\nk1,"a\r\nb"\r\nk2,x|\\\r\n' if encoding == "Shift_JIS" else 'id,n\r\nä,"ö\r\n€"\r\nk2,x\r\n'
    landing.put("a.csv", text.encode(encoding))
    assert landing.ingest(format="csv", options={"encoding": encoding}).rows == 2
    wanted = [("k1", "a\r\nb"), ("k2", "x|\\")] if encoding == "Shift_JIS" else [("k2", "x"), ("ä", "ö\r\n€")]
    assert landing.rows() == wanted


@pytest.mark.parametrize("format", ["csv", "json"])
def test_bytes_that_another_encoding_does_not_define_are_bad_records(landing: TextLanding, format: str) -> None:
    """lakehq/sail#2388, for an encoding that the spec declares: 0x81 is not defined by windows-1252."""
    head, line = FORMATS[format]
    landing.put("a", head + line % "kä€".encode("cp1252") + line % b"k\x81" + line % b"k\xc3\x81")
    options = {"encoding": "windows-1252"}
    report = landing.ingest(format=format, options=options, max_bad_records=2)
    assert (report.rows, report.bad_records) == (1, 2)
    assert landing.rows("id") == [("kä€",)]
    replay = landing.ingest(action="replay", format=format, options=options, max_bad_records=2)
    assert (replay.rows, replay.bad_records) == (0, 2)


def test_file_that_cannot_be_decoded_at_all_and_damaged_header_are_refused_with_their_name(
    landing: TextLanding,
) -> None:
    """lakehq/sail#2388: a header was read with replacement characters, and gave a column of that name."""
    landing.put("a.csv", b"id,n\xe4\n1,x\n")
    assert "header of" in (message := landing.refusal(format="csv")) and "a.csv is not text in the encoding" in message
    landing.put("a.csv", "id,n\n1,x\n".encode("utf-16")[:-1])
    assert "a.csv is not text in the encoding 'UTF-16'" in landing.refusal(format="csv", options={"encoding": "UTF-16"})


@pytest.mark.parametrize("format", ["json", "debezium"])
def test_messages_account_for_every_byte_of_their_value(
    spark: SparkSession, kafka: Broker, tmp_path: Path, format: str
) -> None:
    """FasterXML/jackson-databind#4290, lakehq/sail#2388: messages lost text after the first object, and their bytes."""
    line = FORMATS[format][1].strip()
    good = (line % b"g1", line % b"g2" + b"  \n", line.replace(b"x", b"}{") % b"g3")
    bad = [line % key for key in KEYS]
    bad += [line % b"b1" + end for end in (b"{", b"}", b"]", b" and more", b", {}", line % b"b2")]
    bad += [b'{"id": "b3", "n": "x", "id": "b4"}'] if format == "json" else []
    topic = kafka.topic(1)
    kafka.send(topic, [Message(value=value) for value in (*good, *bad)])
    events: dict[str, Any] = {"delete_field": "_change_operation_type", "delete_marker": "d"}
    spec = TableSpec(
        table="t",
        location=str(tmp_path / "table"),
        record_key=("id",),
        schema=schema_of(format),
        **(events if format == "debezium" else {}),
        ingest=IngestSpec(source=KafkaSourceSpec(topic=topic, format=format), max_bad_records=len(bad)),
    )
    environ = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": {"bootstrap.servers": kafka.address}})}
    report = run_ingest(spark, spec, IngestCommand(table="t"), environ=environ)
    assert (report.rows, report.bad_records) == (len(good), len(bad))
    found = Table.open(spec.location).scan(columns=["id", "n"]).to_arrow().to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == [("g1", "x"), ("g2", "x"), ("g3", "}{")]


def test_unknown_encoding_is_refused(landing: TextLanding) -> None:
    """lakehq/sail#2388."""
    landing.put("a.csv", b"id,n\n1,x\n")
    with pytest.raises(UserError, match="encoding 'latin-ninety' is unknown"):
        landing.ingest(format="csv", options={"encoding": "latin-ninety"})
