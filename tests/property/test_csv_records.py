"""Records of CSV, divided block by block, are those that Python's csv module reads from the whole text."""

from __future__ import annotations

import csv
import io
from unittest import mock

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.spark import lines
from lakehouse.spark.csv_dialect import CsvDialect
from lakehouse.spark.lines import TextLayout, line_batches
from tests.support.tables import examples

BREAKS = ("\n", "\r", "\r\n")
SEPARATORS = (",", "\t", ";", "|", "^", "]")
ESCAPES = ('"', "\\")
#: Any text of the characters that decide where a record ends.
HOSTILE = st.text(st.sampled_from('a,"\n\r'), max_size=40)


def divided(text: str, dialect: CsvDialect, block_bytes: int) -> list[str]:
    """Return the records of a file that is read in blocks of this size."""
    storage = MemoryStorage()
    storage.put("a.csv", text.encode())
    layout = TextLayout(dialect=dialect)
    positions = iter([pa.RecordBatch.from_pydict({"number": [0]})])
    with mock.patch.object(lines, "BLOCK_BYTES", block_bytes):
        batches = list(line_batches(storage, ("a.csv",), layout, positions))
    return [record for batch in batches for record in batch.column("value").to_pylist()]


def parsed(text: str, dialect: CsvDialect) -> list[list[str]]:
    """Return the values of the records of a text, by Python."""
    doubles = dialect.escape == dialect.quote
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=dialect.separator,
        quotechar=dialect.quote,
        doublequote=doubles,
        escapechar=None if doubles else dialect.escape,
    )
    return [row for row in reader if row]


@st.composite
def files(draw: st.DrawFn) -> tuple[str, CsvDialect, list[list[str]]]:
    """Draw the text of a file, its dialect, and its values; each record has its own line break and quotes."""
    dialect = CsvDialect(separator=draw(st.sampled_from(SEPARATORS)), escape=draw(st.sampled_from(ESCAPES)))
    # Python's module also takes an escape outside of quotes, unlike Spark.
    plain = st.text(st.characters(codec="utf-8", exclude_characters=f'"\\\r\n\ufeff\0{dialect.separator}'), max_size=5)
    hostile = st.text(st.sampled_from(f'aé"\\\r\n{dialect.separator}'), max_size=8)
    rows, text = [], ""
    for _ in range(draw(st.integers(0, 6))):
        row, fields = ["x"], ["x"]
        for _ in range(draw(st.integers(0, 3))):
            if draw(st.booleans()):
                value = draw(plain)
                fields.append(value)
            else:
                value = draw(hostile)
                inner = value if dialect.escape == '"' else value.replace("\\", "\\\\")
                fields.append('"' + inner.replace('"', dialect.escape + '"') + '"')
            row.append(value)
        rows.append(row)
        text += dialect.separator.join(fields) + draw(st.sampled_from(BREAKS))
    return (text[:-1] if rows and draw(st.booleans()) else text), dialect, rows


@examples(300)
@given(given=files(), block_bytes=st.integers(1, 30))
def test_records_of_a_valid_file_have_its_values(
    given: tuple[str, CsvDialect, list[list[str]]], block_bytes: int
) -> None:
    text, dialect, rows = given
    assert parsed(text, dialect) == rows
    assert [parsed(record, dialect) for record in divided(text, dialect, block_bytes)] == [[row] for row in rows]


@examples(500)
@given(text=HOSTILE, block_bytes=st.integers(1, 12))
def test_records_of_any_text_are_those_of_python(text: str, block_bytes: int) -> None:
    dialect = CsvDialect()
    rows = [row for record in divided(text, dialect, block_bytes) for row in parsed(record, dialect)]
    wanted = parsed(text, dialect)
    # A quote that is never closed takes the rest of the file, and such a record is bad; its last line breaks are cut.
    assert [[value.rstrip("\r\n") for value in row] for row in rows] == [
        [value.rstrip("\r\n") for value in row] for row in wanted
    ]


@examples(200)
@given(given=files(), first=st.integers(1, 30), second=st.integers(1, 30))
def test_records_do_not_depend_on_the_size_of_blocks(
    given: tuple[str, CsvDialect, list[list[str]]], first: int, second: int
) -> None:
    text, dialect, _ = given
    assert divided(text, dialect, first) == divided(text, dialect, second)
