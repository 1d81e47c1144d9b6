"""Text that a parser does not use up: every byte of a record belongs to a row, or the record is bad."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.text_landing import TextLanding

pytestmark = pytest.mark.spark
EVENT = '{"payload": {"after": {"id": "%s", "n": "x}{y"}, "op": "c"}}'
#: Lines that Spark's parser reads as one row, although they have more than one object.
RAGGED = (
    '{"id": "r1"}{',
    '{"id": "r2"} and more',
    '{"id": "r3"}}',
    '{"id": "r4"}]',
    '{"id": "r5"}, {"id": "r6"}',
    '{"id": "r7"}"text"',
    '{"id": "r8", "n": {"deep": 1}}, "n": {}',
    '[{"id": "r9"}',
    "{'id': 'ra'} {'id': 'rb'",
)


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> TextLanding:
    return TextLanding(spark, tmp_path)


def test_objects_on_one_line_are_all_read_in_plain_and_compressed_files(landing: TextLanding) -> None:
    """elastic/beats#30436, apache/spark#SPARK-19595: objects of Firehose and arrays on one line became one row."""
    landing.put("plain.json", b'{"id": "1", "n": "}{"}{"id": "2"}\t{"id": "3", "n": "\\"}{"}\n')
    landing.put("packed.json.gz", gzip.compress(b'{"id": "4"}{"id": "5"}\n{"id": "6"}'))
    landing.put("packed.json.zst", pa.compress(b'{"id": "7"}{"id": "8"}', codec="zstd", asbytes=True))
    landing.put("array.json", b'[{"id": "9"}, {"id": "a", "n": 17}]\n[]\n')
    assert landing.ingest().rows == 10
    assert landing.rows() == [
        ("1", "}{"),
        ("2", None),
        ("3", '"}{'),
        *((key, None) for key in "456789"),
        ("a", "17"),
    ]


def test_ragged_lines_are_bad_and_no_part_of_them_becomes_a_row(landing: TextLanding) -> None:
    """FasterXML/jackson-databind#4290: text after the first value of a record was ignored."""
    good = ('{"id": "g1", "n": "}{ ]["}', " {'id': 'g2', 'n': '}{'}\r", '{"id": "g3", "n": {"a": [{"b": "}"}]}}')
    landing.put("a.json", "\n".join([*RAGGED, *good]).encode())
    report = landing.ingest(max_bad_records=len(RAGGED))
    assert (report.rows, report.bad_records) == (3, len(RAGGED))
    assert landing.letters() == sorted(RAGGED)
    assert landing.rows() == [("g1", "}{ ]["), ("g2", "}{"), ("g3", '{"a":[{"b":"}"}]}')]


@pytest.mark.parametrize(
    ("options", "line", "rows"),
    [
        ({"allowComments": "true"}, '{"id": "1"} // {"id": "2"}', 1),
        ({"allowComments": "true"}, '{"id": /* } */ "1"}', 1),
        ({"allowComments": "true"}, '{"id": "1"} {"id": "2"}', 2),
        ({"allowUnquotedFieldNames": "true"}, '{id: "1"}{id: "2"}', 2),
        ({"allowSingleQuotes": "false"}, '{"id": "1"}{"id": "2"}', 2),
        ({"lineSep": ";"}, '{"id": "1"};{"id": "2"}\n;', 2),
    ],
)
def test_options_of_the_parser_decide_where_an_object_ends(
    landing: TextLanding, options: dict[str, str], line: str, rows: int
) -> None:
    """FasterXML/jackson-databind#4290."""
    landing.put("a.json", line.encode())
    assert landing.ingest(options=options).rows == rows


def test_multi_line_option_reads_every_object_of_a_file(landing: TextLanding) -> None:
    """graveyard/heka-clever-plugins#88: with `multiLine`, JSON lines and sequences of objects gave one row."""
    landing.put("lines.json", b'\xef\xbb\xbf{"id": "1"}\n{"id": "2"}\n')
    landing.put("pretty.json", b'[\n  {\n    "id": "3"\n  },\n  {"id": "4", "n": null}\n]\n')
    landing.put("packed.json.gz", gzip.compress(b'{"id":\n"5"}{"id": "6"}'))
    landing.put("cut.json", b'[{"id": "7"},\n{"id": "8"}')
    report = landing.ingest({}, options={"multiLine": "true"}, max_bad_records=1)
    assert (report.rows, report.bad_records) == (6, 1)
    assert landing.rows("id") == [(str(number),) for number in range(1, 7)]
    assert landing.letters() == ['[{"id": "7"},\n{"id": "8"}']


def test_change_events_on_one_line_are_all_read_and_ragged_ones_are_bad(landing: TextLanding) -> None:
    """graveyard/heka-clever-plugins#88."""
    landing.put("a.json", f"{EVENT % 1}{EVENT % 2}\n{EVENT % 3} and more\nnull\n".encode())
    schema = {"id": "string", "n": "string", "_change_operation_type": "string"}
    report = landing.ingest(schema, format="debezium", max_bad_records=1)
    assert (report.rows, report.bad_records) == (2, 1)
    assert landing.rows("id") == [("1",), ("2",)]
    assert landing.letters() == [f"{EVENT % 3} and more"]


def test_replay_reads_the_objects_of_a_divided_line_once(landing: TextLanding) -> None:
    """graveyard/heka-clever-plugins#88."""
    landing.put("a.json", b'{"id": "1", "n": 3000000000} {"id": "2", "n": 3}\n{"id": "3", "n": 4} and more\n')
    assert landing.ingest({"id": "string", "n": "int"}, max_bad_records=2).bad_records == 2
    assert landing.rows() == [("2", 3)]
    report = landing.ingest({"id": "string", "n": "bigint"}, action="replay", max_bad_records=2)
    assert (report.rows, report.bad_records) == (1, 1)
    assert landing.rows() == [("1", 3_000_000_000), ("2", 3)]


def test_names_of_all_objects_on_a_line_become_columns(landing: TextLanding) -> None:
    """graveyard/heka-clever-plugins#88: the columns of a first run came from the first object of each line."""
    landing.put("a.json", b'{"id": "k1"}{"id": "k2", "late": true}\n{"id": "k3"} {"lost": 1\n')
    assert landing.ingest({}, max_bad_records=1).rows == 2
    assert landing.rows("id", "late") == [("k1", None), ("k2", True)]
