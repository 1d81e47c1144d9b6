"""Test hostile input: delete columns of a wrong type, truncated files, very long keys and very deep nesting."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.publication import decode_publications
from lakehouse.core.format.timeline.archive import decode_manifest
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError, UserError
from lakehouse.platform.jobs.run import run_job
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint
from lakehouse.platform.sources.files.file_probe import _json_names
from lakehouse.spec.contracts.job import IngestReport, parse_report
from lakehouse.spec.job_command import IngestCommand, JobCommand
from lakehouse.spec.table.table_spec import parse_spec
from lakehouse.spec.yaml_section import read_value
from tests.support.archived import eager
from tests.support.tables import make_env

DELETED = "_hoodie_is_deleted"
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def table_of(**declared: Any) -> Table:
    """Return a new table with the record key `id`."""
    env = make_env(storage=MemoryStorage())
    return Table.create(env.storage.root, name="t", record_key="id", env=env, **declared)


def rows_of(*keys: str, **columns: Any) -> pa.Table:
    """Return rows with these record keys."""
    return pa.table({"id": list(keys), "v": [1] * len(keys), **columns})


# Delete columns.


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize(
    "marks",
    [
        pa.array(["true", "false"]),
        pa.array(["yes", "x"]),
        pa.array([1, 0]),
        pa.array([1.0, 0.0]),
        pa.array(["true", "false"]).dictionary_encode(),
        pa.array([{"a": 1}, None]),
    ],
    ids=lambda marks: str(marks.type),
)
def test_delete_column_that_is_not_boolean_is_refused(table_type: str, marks: pa.Array) -> None:
    table = table_of(table_type=table_type)
    table.upsert(rows_of("a", "b"))
    with pytest.raises(UserError, match=rf"column '{DELETED}' is .*, and must be boolean.*boolean\({DELETED}\)"):
        table.upsert(rows_of("a", "b", **{DELETED: marks}))
    assert table.scan("id").count() == 2


@pytest.mark.parametrize("table_type", TYPES)
def test_boolean_delete_column_deletes_rows(table_type: str) -> None:
    table = table_of(table_type=table_type)
    table.upsert(rows_of("a", "b", "c"))
    table.upsert(rows_of("a", "b", "c", **{DELETED: pa.array([True, False, None])}))
    assert sorted(table.scan("id").to_arrow()["id"].to_pylist()) == ["b", "c"]


# Truncated and damaged files.


def _with_length(data: bytes, length: int) -> bytes:
    return data[:-8] + struct.pack("<I", length) + data[-4:]


def _garbage_footer(data: bytes) -> bytes:
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[: -8 - length] + Random(2).randbytes(length) + data[-8:]


def _garbage_bloom(data: bytes) -> bytes:
    at = data.index(b"org.apache.hudi.bloomfilter") + 40
    return data[:at] + b"\xff*" + data[at + 2 :]


#: The ways to damage a parquet file: name -> function from the bytes of a file to the damaged bytes.
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: b"P",
    "only the magic": lambda data: b"PAR1PAR1",
    "without the last byte": lambda data: data[:-1],
    "without the footer": lambda data: data[:-8],
    "the first half": lambda data: data[: len(data) // 2],
    "garbage": lambda data: Random(1).randbytes(len(data)),
    "footer of 2 GiB": lambda data: _with_length(data, 0x7FFFFFFF),
    "footer of 4 GiB": lambda data: _with_length(data, 0xFFFFFFFF),
    "footer of zero bytes": lambda data: _with_length(data, 0),
    "garbage in the footer": _garbage_footer,
    "encrypted": lambda data: data[:-4] + b"PARE",
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("verb", ["scan", "upsert"])
def test_errors_of_readers_and_writers_name_a_broken_parquet_file(verb: str, name: str) -> None:
    table = table_of()
    table.upsert(rows_of("a", "b"))
    storage = table.refresh().env.storage
    (path,) = [file.path for file in storage.list("") if file.path.endswith(".parquet")]
    storage.put(path, BROKEN[name](storage.get(path)))
    with pytest.raises(CorruptTableError, match=path):
        _ = table.scan().to_arrow() if verb == "scan" else table.upsert(rows_of("a"))


def test_errors_of_writers_name_the_file_of_a_broken_bloom_filter() -> None:
    table = table_of()
    table.upsert(rows_of("a", "b"))
    storage = table.refresh().env.storage
    (path,) = [file.path for file in storage.list("") if file.path.endswith(".parquet")]
    storage.put(path, _garbage_bloom(storage.get(path)))
    with pytest.raises(CorruptTableError, match=path):
        table.upsert(rows_of("a"))


@pytest.mark.parametrize("name", BROKEN)
def test_errors_name_a_broken_archive_file(name: str) -> None:
    table = eager(table_of())
    for key in "abcdef":
        table.upsert(rows_of(key))
    table.services.archive.run(force=True)
    storage = table.refresh().env.storage
    paths = [file.path for file in storage.list(".hoodie/timeline/history") if file.path.endswith(".parquet")]
    assert paths
    for path in paths:
        storage.put(path, BROKEN[name](storage.get(path)))
    with pytest.raises(CorruptTableError, match=r"timeline/history/.*\.parquet is not a valid Parquet file"):
        Table.open(table.location, env=table.refresh().env).archived()


# Long record keys.


@pytest.mark.parametrize("verb", ["upsert", "insert", "bulk_insert"])
def test_record_key_above_the_limit_is_refused_with_its_length(verb: str) -> None:
    table = table_of()
    with pytest.raises(UserError, match=r"1 of 2 rows have a record key of more than 16,384 bytes; the longest has "):
        getattr(table, verb)(rows_of("a", "ü" * 8_193))
    assert table.timeline.writes().instants == ()


def test_limit_of_record_keys_is_an_option() -> None:
    table = table_of()
    with pytest.raises(UserError, match="more than 3 bytes; the longest has 4 and begins with 'abcd'"):
        table.upsert(rows_of("abc", "abcd"), options={"lakehouse.record_key.max.bytes": "3"})
    table.upsert(rows_of("x" * 16_385), options={"lakehouse.record_key.max.bytes": "0"})
    assert table.scan().count() == 1


# Deep nesting.


def nested(levels: int, wrap: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with this many levels of nesting."""
    kind = pa.int64()
    for _ in range(levels - 1):
        kind = wrap(kind)
    return kind


@pytest.mark.parametrize("wrap", [pa.list_, lambda kind: pa.struct([("a", kind)])], ids=["list", "struct"])
def test_nested_columns_are_refused_above_the_depth_that_can_be_read(
    wrap: Callable[[pa.DataType], pa.DataType],
) -> None:
    for levels in (41, 60, 500, 3_000):
        table = table_of()
        rows = rows_of("a", deep=pa.nulls(1, nested(levels, wrap)))
        with pytest.raises(UserError, match="column 'deep' has more than 40 nested levels"):
            table.upsert(rows)
    table = table_of()
    rows = rows_of("a", deep=pa.nulls(1, nested(40, wrap)))
    table.upsert(rows)
    table.upsert(rows)
    assert table.scan().to_arrow().num_rows == 1


DEEP = "[" * 100_000


@pytest.mark.parametrize("deep", ["[" * 70 + "]" * 70, DEEP, "{a: " * 100_000, "- " * 70 + "x", "- " * 50_000 + "x"])
@pytest.mark.parametrize("name", ["record_key", "services", "options", "location"])
def test_spec_that_is_nested_too_deep_is_refused_with_its_line(name: str, deep: str) -> None:
    with pytest.raises(UserError, match=r"orders\.yaml:\d+: more than \d+ levels of nesting"):
        parse_spec(f"table: sales.orders\nlocation: x\n{name}:\n  {deep}\n", source="orders.yaml")


def laughs(levels: int) -> str:
    """Return YAML aliases in which each level refers to the previous level ten times."""
    named = [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10 if n else ['x'] * 10)}]" for n in range(levels)]
    return f"[{', '.join(named)}]"


@pytest.mark.parametrize("place", ["services:\n  clean:\n    deadline: ", "record_key: ", "options: ", "services: "])
def test_spec_with_exponential_aliases_is_refused_before_expansion(place: str) -> None:
    lead = "" if place.startswith("record_key") else "record_key: id\n"
    with pytest.raises(UserError, match=r"orders\.yaml:\d+: more than 200000 values"):
        parse_spec(f"table: sales.orders\nlocation: x\n{lead}{place}{laughs(9)}\n", source="orders.yaml")
    with pytest.raises(UserError, match="more than 200000 values"):
        read_value(laughs(9), source="commits_retained")
    assert read_value(laughs(2), source="commits_retained")[1][9] == ["x"] * 10


@pytest.mark.parametrize(
    "decode",
    [
        lambda: decode_commit(DEEP.encode()),
        lambda: decode_publications(DEEP.encode(), "state.json"),
        lambda: decode_manifest(DEEP.encode()),
        lambda: Checkpoint.from_json(DEEP),
        lambda: avro_to_arrow(DEEP),
        lambda: parse_report(DEEP),
    ],
    ids=["commit", "publications", "manifest", "checkpoint", "schema", "report"],
)
def test_json_that_is_nested_too_deep_raises_the_error_of_its_decoder(decode: Callable[[], object]) -> None:
    with pytest.raises(LakehouseError):
        decode()


@pytest.mark.parametrize("levels", [300, 5_000])
def test_properties_with_a_schema_that_is_nested_too_deep_are_refused(levels: int) -> None:
    table = table_of()
    storage = table.refresh().env.storage
    schema = '"string"'
    for level in range(levels):
        schema = f'{{"type":"record","name":"r{level}","fields":[{{"name":"a","type":{schema}}}]}}'
    values = parse_properties(storage.get(".hoodie/hoodie.properties")) | {"hoodie.table.create.schema": schema}
    storage.put(".hoodie/hoodie.properties", render_properties(values, comments=()))
    with pytest.raises((CorruptTableError, UnsupportedError), match="the table schema"):
        _ = Table.open(table.location, env=table.refresh().env).schema


def test_json_records_that_are_nested_too_deep_have_no_names() -> None:
    assert _json_names('{"a":' * 100_000 + "1" + "}" * 100_000) == ()


def test_policy_value_that_is_nested_too_deep_or_invalid_yaml_is_refused() -> None:
    with pytest.raises(UserError, match=r"commits_retained:1: more than \d+ levels of nesting"):
        read_value(DEEP, source="commits_retained")
    with pytest.raises(UserError, match=r"commits_retained: .* is not valid YAML"):
        read_value("[1", source="commits_retained")
    assert read_value("[1, 2]", source="commits_retained") == [1, 2]


def test_job_with_deeply_nested_input_ends_with_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    def work(command: JobCommand) -> IngestReport:
        return work(command)

    command = IngestCommand(table="orders.yaml")
    assert run_job(command, work, lambda command: ()) == UserError.exit_code
    assert "orders.yaml: a value or a type of the input is nested too deep" in capsys.readouterr().err
