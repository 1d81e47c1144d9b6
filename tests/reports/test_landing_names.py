"""Files of a landing zone that cannot be read as they are: the message has the file, the reason and a way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.platform.sources.files.file_listing import UNFINISHED, list_source
from tests.support.text_landing import TextLanding

pytestmark = pytest.mark.spark
PRETTY = b'{\n  "id": "1",\n  "n": "x"\n}\n'


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> TextLanding:
    return TextLanding(spark, tmp_path)


def test_unfinished_uploads_are_not_read_until_they_are_renamed(landing: TextLanding) -> None:
    """filebrowser/filebrowser#1301: a reader took files that were still being uploaded."""
    landing.put("a.json", b'{"id": "1"}\n')
    for suffix in UNFINISHED:
        landing.put(f"b.json{suffix}", b'{"id": "half')
    report = landing.ingest()
    assert (report.rows, report.bad_records) == (1, 0)
    assert f"{len(UNFINISHED)} files are not read because their names are those of unfinished" in report.warning
    landing.put("b.json", b'{"id": "2"}\n')
    for suffix in UNFINISHED:
        (landing.folder / f"b.json{suffix}").unlink()
    report = landing.ingest()
    assert (report.rows, report.warning) == (1, "")
    assert landing.rows("id") == [("1",), ("2",)]


@pytest.mark.parametrize("path", ["*.tmp", "a.tmp", "**/*.tmp"])
def test_path_that_names_such_files_reads_them(tmp_path: Path, path: str) -> None:
    """filebrowser/filebrowser#1301: a suffix that is no unfinished upload stays readable."""
    (tmp_path / "a.tmp").write_bytes(b"{}")
    (tmp_path / "b.json").write_bytes(b"{}")
    assert [file.path for file in list_source((f"{tmp_path}/{path}",), {}).files] == ["a.tmp"]


def test_name_that_is_not_utf8_is_refused_with_its_bytes(landing: TextLanding) -> None:
    """filebrowser/filebrowser#1301, for names: the name ended Spark's connection, and the run was tried again."""
    with open(os.fsencode(landing.folder) + b"/k\xe4.json", "wb") as file:
        file.write(b'{"id": "1"}')
    message = landing.refusal()
    assert r"b'k\xe4.json'" in message and "is not UTF-8" in message and "Rename the file" in message


def test_pretty_printed_records_are_refused_with_the_option_that_reads_them(landing: TextLanding) -> None:
    """rcongiu/Hive-JSON-Serde#116: a reader of lines has to say that records of several lines are not read."""
    landing.put("a.json", PRETTY)
    for schema in ({}, None):
        message = landing.refusal(schema)
        assert "a.json" in message and "spans lines, set options: {multiLine: 'true'}" in message
    assert landing.ingest(options={"multiLine": "true"}).rows == 1
    assert landing.rows() == [("1", "x")]


def test_keys_that_differ_only_in_case_are_refused_with_their_file_in_a_first_run(landing: TextLanding) -> None:
    """duckdb/duckdb#6722: a JSON file with `id` and `Id` cannot become a table; the message named no file."""
    landing.put("a.json", b'{"id": "1", "n": "x"}\n')
    landing.put("b.json", b'{"id": "2", "N": "y"}\n{"id": "3", "n": "x", "N": "y"}\n')
    message = landing.refusal({})
    assert "'n'" in message and "'N'" in message and "b.json" in message


@pytest.mark.parametrize("schema", [None, {}], ids=["declared", "inferred"])
def test_object_with_a_repeated_key_is_a_bad_record(landing: TextLanding, schema: dict[str, str] | None) -> None:
    """apache/spark#47920: of a key that an object has twice, the last value was kept without a word."""
    repeated = '{"id": "1", "n": "x", "id": "2"}'
    landing.put("a.json", f'{{"id": "g", "n": "x"}}\n{repeated}\n'.encode())
    landing.put("b.json", b'{"id": "h", "n": "y"}\n')
    message = landing.refusal(schema)
    assert "1 bad record" in message and "a.json" in message and repeated in message
    assert landing.ingest(schema, max_bad_records=1).rows == 2
    assert landing.rows() == [("g", "x"), ("h", "y")]
