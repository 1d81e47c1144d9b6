"""Standard CSV (RFC 4180): doubled quotes, line breaks inside of quotes, and ragged records that are not rows."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.text_landing import TextLanding

pytestmark = pytest.mark.spark
#: Values as Excel, pandas and COPY write them.
VALUES = ('say "hi"', "two\nlines", "three\r\nlines\n", ",;\t", '""', "", " x ", "'", "\\", 'a\\"b', "é\n\n\u2028")
#: Records of standard CSV cannot be like this; Spark's reader made rows of all of them.
RAGGED = ('r1,"a"b', 'r2,"a" ', '"r3"x,b', 'r4,"a""\n"x')


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> TextLanding:
    return TextLanding(spark, tmp_path)


def written(rows: list[tuple[str, str]], **dialect: Any) -> bytes:
    """Return rows as Python's module csv writes them, with a header."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, **dialect)
    writer.writerow(["id", "n"])
    writer.writerows(rows)
    return text.getvalue().encode()


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL], ids=["minimal", "all"])
def test_values_of_standard_csv_are_read_unchanged(landing: TextLanding, quoting: int) -> None:
    """databricks/spark-csv#466: Spark's escape is a backslash, and each line is a record."""
    rows = [(f"k{number:02}", value) for number, value in enumerate(VALUES)]
    landing.put("a.csv", written(rows, quoting=quoting))
    landing.put("b.csv.gz", gzip.compress(written([("z", 'last "one"\n')], lineterminator="\n").rstrip(b"\n")))
    landing.put("c.csv", written([("y", 'no "line" break')]))
    assert landing.ingest(format="csv").rows == len(VALUES) + 2
    wanted = [*rows, ("y", 'no "line" break'), ("z", 'last "one"\n')]
    assert [(key, n or "") for key, n in landing.rows()] == wanted


def test_columns_and_types_of_records_that_span_lines_are_inferred(landing: TextLanding) -> None:
    """databricks/spark-csv#466."""
    landing.put("a.csv", b'"id","name",n\nk1,"a\nb",1\nk2,"1,2\n3",2\n')
    assert landing.ingest({}, format="csv").rows == 2
    assert landing.rows("id", "name", "n") == [("k1", "a\nb", 1), ("k2", "1,2\n3", 2)]


def test_ragged_records_are_bad_and_the_next_record_is_read(landing: TextLanding) -> None:
    """databricks/spark-csv#466: with `max_bad_records: 0` halves of a record became rows."""
    landing.put("a.csv", 'id,n\n{}\ng1,x\ng2,5" pipe\ng3,"a\nb"\n'.format("\n".join(RAGGED)).encode())
    landing.put("open.csv", b'id,n\ng4,x\no1,"open\no2,b\n')
    report = landing.ingest(format="csv", max_bad_records=len(RAGGED) + 1)
    assert (report.rows, report.bad_records) == (4, len(RAGGED) + 1)
    assert landing.rows() == [("g1", "x"), ("g2", '5" pipe'), ("g3", "a\nb"), ("g4", "x")]
    assert landing.letters() == sorted([*RAGGED, 'o1,"open\no2,b'])
    replay = landing.ingest(action="replay", format="csv", max_bad_records=len(RAGGED) + 1)
    assert (replay.rows, replay.bad_records) == (0, len(RAGGED) + 1)


@pytest.mark.parametrize(
    ("options", "data", "row"),
    [
        ({"escape": "\\"}, b'id,n\nk,"say \\"hi\\""\n', 'say "hi"'),
        ({"multiLine": "false", "unescapedQuoteHandling": "STOP_AT_DELIMITER"}, b'id,n\nk,"a"b\n', '"a"b'),
        ({"quote": ""}, b'id,n\nk,"a"b\n', '"a"b'),
        ({"quote": "'"}, b"id,n\nk,'it''s\nb'\n", "it's\nb"),
        ({"sep": "||"}, b'id||n\nk||"a||\nb"\n', "a||\nb"),
        ({"delimiter": "\\t"}, b'id\tn\nk\t"a\t\nb"\n', "a\t\nb"),
        ({"comment": "#"}, b'# "made by\nid,n\n#,"\nk,"a\n#b"\n', "a\n#b"),
        ({"ignoreLeadingWhiteSpace": "true"}, b'id,n\nk, "a,b"\n', "a,b"),
        ({"lineSep": "\n"}, b'id,n\nk,"a\nb"\n', "a\nb"),
    ],
)
def test_options_of_the_spec_decide_about_quotes(
    landing: TextLanding, options: dict[str, str], data: bytes, row: str
) -> None:
    """databricks/spark-csv#466: other dialects stay readable."""
    landing.put("a.csv", data)
    assert landing.ingest(format="csv", options=options).rows == 1
    assert landing.rows() == [("k", row)]


def test_lines_are_records_if_the_spec_says_so_and_halves_are_bad(landing: TextLanding) -> None:
    """databricks/spark-csv#466."""
    landing.put("a.csv", b'id,n\nk1,"a\nk2,b"\nk3,c\n')
    report = landing.ingest(format="csv", options={"multiLine": "false"}, max_bad_records=2)
    assert (report.rows, report.bad_records) == (2, 1)
    assert landing.rows() == [("k2", 'b"'), ("k3", "c")]
