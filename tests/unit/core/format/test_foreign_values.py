"""Test that each value in another owner's table metadata is used or raises a LakehouseError, in bounded time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.format.file_names import parse_base_file, parse_instant
from lakehouse.core.format.partition_metadata import parse_partition_metadata
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.timeline.archive import parse_history_file, parse_manifest_name
from lakehouse.core.format.ttl_rules import decode_base
from lakehouse.core.rows.joda_patterns import compile_pattern, parse
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.claims import holds_claim
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.platform.catalog.existing_tables import spec_of
from lakehouse.platform.services.partition_filter import partitions_in
from lakehouse.spec.quantities import parse_duration, parse_size
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.tables import make_env

PROPERTIES = ".hoodie/hoodie.properties"
#: A digit for Python's `isdigit` but not for `int`.
SUPERSCRIPT = "²"
#: Instant times with digits outside ASCII, which `\d` and `int` accept.
FOREIGN_TIME = "".join(chr(0x660 + int(digit)) for digit in "20260101000000000")


def with_properties(**changed: str) -> Table:
    """Return a table with changed properties; the names have `_` in place of `.`."""
    env = make_env(storage=MemoryStorage())
    table = Table.create(env.storage.root, name="t", record_key="id", partition_by="p", env=env)
    table.upsert(pa.table({"id": ["1"], "p": ["a"]}))
    raw = parse_properties(env.storage.get(PROPERTIES))
    env.storage.put(PROPERTIES, render_properties(raw | {k.replace("_", "."): v for k, v in changed.items()}))
    return table


@pytest.mark.parametrize("version", [SUPERSCRIPT, "9" * 5_000, "\N{ARABIC-INDIC DIGIT NINE}"])
def test_version_that_is_not_a_number_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedError, match="versions 6, 8, 9 are"):
        parse_table_config({"hoodie.table.name": "t", "hoodie.table.version": version}, "/t")


@pytest.mark.parametrize("key", ["hoodie.table.name", "hoodie.timeline.path", "hoodie.table.type"])
def test_unpaired_surrogate_in_properties_is_refused_by_each_operation(key: str) -> None:
    table = with_properties()
    storage = table.refresh().env.storage
    storage.put(PROPERTIES, storage.get(PROPERTIES) + key.encode() + b"=\\uD800x\n")
    with pytest.raises(CorruptTableError, match="unpaired surrogate") as raised:
        Table.open(table.location, env=make_env(storage=storage))
    assert str(raised.value).encode()


def test_surrogate_pair_in_properties_is_one_character() -> None:
    assert parse_properties(b"a=\\uD83D\\uDE00\n") == {"a": "\N{GRINNING FACE}"}


def test_empty_delimiter_of_date_formats_is_replaced_by_the_default() -> None:
    lead = "hoodie.keygen.timebased."
    raw = {
        "hoodie.table.name": "t",
        "hoodie.table.version": "9",
        "hoodie.table.partition.fields": "ts:TIMESTAMP",
        "hoodie.table.keygenerator.type": "CUSTOM",
        f"{lead}input.dateformat": "yyyy,yyyy-MM",
        f"{lead}input.dateformat.list.delimiter.regex": "",
    }
    timestamp = parse_table_config(raw, "/t").keys.timestamp
    assert timestamp is not None and timestamp.input_formats == ("yyyy", "yyyy-MM")


@pytest.mark.parametrize("count", ["many", SUPERSCRIPT, "9" * 5_000, "-1"])
def test_bucket_count_that_is_not_a_number_is_refused_at_registration(count: str) -> None:
    raw = {
        "hoodie.table.name": "t",
        "hoodie.table.version": "9",
        "hoodie.table.recordkey.fields": "id",
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": count,
    }
    with pytest.raises(UserError, match=r"buckets: .* is not a whole number"):
        spec_of(parse_table_config(raw, "/t"), identifier="a.t", location="/t")


def test_integer_of_a_spec_is_bounded() -> None:
    with pytest.raises(UserError, match="at most 18 digits"):
        parse_spec(
            f"table: a.b\nlocation: x\nrecord_key: id\nindex:\n  type: bucket\n  buckets: {'9' * 5_000}\n", source="s"
        )


@pytest.mark.parametrize("text", ["9" * 5_000 + "d", "999999999w", f"{FOREIGN_TIME}d"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_duration("age", text)
    with pytest.raises(UserError):
        parse_size("size", text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("Zy/" * 20, "+01021/" * 20 + "!"), ("MMM/" * 24, "May/" * 24 + "!")],
    ids=["offset and year", "ambiguous names"],
)
def test_date_pattern_search_ends_if_tokens_are_ambiguous(pattern: str, text: str) -> None:
    # A search with backtracking has two choices for each of 20 tokens, so it would take too long.
    assert parse(compile_pattern(pattern), text) is None


def test_date_pattern_with_long_output_is_refused() -> None:
    with pytest.raises(UserError, match="longer than 256 characters"):
        compile_pattern("d" * 1_000_000)


def test_names_with_digits_that_are_not_ascii_are_ignored() -> None:
    assert parse_instant(f"{FOREIGN_TIME}_{FOREIGN_TIME}.commit") is None
    assert parse_base_file(f"f-0_0-0-0_{FOREIGN_TIME}.parquet", "p", 1) is None
    assert parse_history_file(f"{FOREIGN_TIME}_{FOREIGN_TIME}_0.parquet", 1) is None
    assert parse_manifest_name(f"manifest_{FOREIGN_TIME}") is None
    assert parse_manifest_name(f"manifest_{'9' * 5_000}") is None


@pytest.mark.parametrize("value", [SUPERSCRIPT, "9" * 5_000])
def test_partition_metadata_without_numbers_is_corrupt(value: str) -> None:
    escaped = value.encode("iso-8859-1")
    with pytest.raises(CorruptTableError, match="both must be numbers"):
        parse_partition_metadata(b"commitTime=20260101000000000\npartitionDepth=" + escaped + b"\n")


def test_folders_of_attempts_with_non_ascii_digits_are_ignored() -> None:
    table = with_properties()
    env = table.refresh().env
    env.storage.put(f".hoodie/.temp/{SUPERSCRIPT}/x", b"")
    env.storage.put(f".hoodie/.staging/20260101000000000/claim-{SUPERSCRIPT}", b"")
    assert [finding.path for finding in table.validate().findings] == [".hoodie/.staging/20260101000000000"]
    assert holds_claim(env, "20260101000000000", 0)


@pytest.mark.parametrize(
    "rule",
    ['{"id": "x", "pattern": 7}', '{"id": 1}', '{"id": "x", "max_bytes": 1.5}', '{"id": "x", "max_bytes": true}'],
)
def test_ttl_rule_with_values_of_another_type_is_corrupt(rule: str) -> None:
    with pytest.raises(CorruptTableError, match="is not of type"):
        decode_base(b'{"up_to": 1, "rules": [' + rule.encode() + b"]}", "here")


def test_partitions_with_the_largest_dates_are_selected_like_others() -> None:
    day = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    end = (datetime(9999, 12, 30, tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    partitions = ["p=9999-12-31", "9999/12", "2026-01-01"]
    assert partitions_in(partitions, day) == ["2026-01-01"]
    assert partitions_in(partitions, end) == ["p=9999-12-31", "9999/12"]


def test_control_characters_in_table_metadata_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(str(tmp_path), name="t", record_key="id", partition_by="p")
    table.upsert(pa.table({"id": ["1"], "p": ["a"]}))
    properties = tmp_path / PROPERTIES
    raw = parse_properties(properties.read_bytes())
    properties.write_bytes(render_properties(raw | {"hoodie.table.name": "x\x1b]0;title\x07\nlocation  /forged"}))
    assert main(["table", "describe", "--table", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "x\\x1b]0;title\\x07\\nlocation  /forged" in shown and "\x1b" not in shown
    properties.write_bytes(render_properties(raw | {"hoodie.table.type": "\x1b[31mred\x9b"}))
    assert main(["table", "describe", "--table", str(tmp_path)]) == UnsupportedError.exit_code
    refused = capsys.readouterr().err
    assert "\\x1b[31MRED\\x9b" in refused and not set("\x1b\x9b") & set(refused)
