"""Validation with `keys="global"` finds keys in several partitions on every table type, within the memory budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.files.keys.key_uniqueness import key_shares
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.validation import Finding, Severity
from tests.support.tables import make_env

LOGS = {"table_type": "MERGE_ON_READ"}


def table_of(location: str = "", options: dict[str, str] | None = None, **declared: Any) -> Table:
    """Return a new table with record key `id`, partitioned by `day`."""
    env = None if location else make_env(storage=MemoryStorage())
    where = location or env.storage.root  # type: ignore[union-attr]
    return Table.create(where, name="t", record_key="id", partition_by="day", options=options, env=env, **declared)


def rows_of(day: int, keys: list[str], v: int = 1) -> pa.Table:
    """Return rows with these keys on one day."""
    return pa.table({"id": keys, "day": [str(day)] * len(keys), "v": [v] * len(keys)})


def global_findings(table: Table) -> list[Finding]:
    """Return the findings about keys of a validation with keys="global"."""
    return [f for f in table.validate(keys="global").findings if f.invariant in ("key.global", "unchecked")]


@pytest.mark.parametrize("declared", [{}, LOGS], ids=["copy_on_write", "merge_on_read"])
def test_keys_in_several_partitions_are_counted_with_examples(declared: dict[str, Any]) -> None:
    table = table_of(**declared)
    table.upsert(rows_of(1, ["a", "b", "c"]))
    table.upsert(rows_of(2, ["b", "d"]))
    table.upsert(rows_of(3, ["b", "c", "e"]))
    table.upsert(rows_of(3, ["e"], v=2))
    (found,) = global_findings(table)
    assert (found.invariant, found.severity) == ("key.global", Severity.WARNING)
    assert found.problem == "2 of 8 keys are in several partitions: 'b' in '1', '2', '3'; 'c' in '1', '3'"
    assert table.validate(deep=True).findings == (), "keys are unique in each partition"


@pytest.mark.parametrize("declared", [{}, LOGS], ids=["copy_on_write", "merge_on_read"])
def test_keys_deleted_in_other_partitions_are_not_found(declared: dict[str, Any]) -> None:
    table = table_of(**declared)
    table.upsert(rows_of(1, ["a", "b"]))
    table.upsert(rows_of(2, ["a", "c"]))
    assert len(global_findings(table)) == 1
    table.delete(rows_of(1, ["a"]).select(["id", "day"]))
    assert global_findings(table) == []


def test_duplicate_keys_in_one_partition_are_not_reported() -> None:
    table = table_of()
    table.insert(rows_of(1, ["a"]))
    table.insert(rows_of(1, ["a"]))
    table.insert(rows_of(2, ["b"]))
    assert global_findings(table) == []
    assert [f.invariant for f in table.validate(deep=True, keys="global").findings] == ["key.unique"]


def test_tables_with_global_index_have_no_keys_in_several_partitions() -> None:
    table = table_of(options={"hoodie.index.type": "GLOBAL_SIMPLE"})
    table.upsert(rows_of(1, ["a", "b"]))
    table.upsert(rows_of(2, ["a"]))
    assert global_findings(table) == []


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_result_does_not_depend_on_the_number_of_shares(parts: int) -> None:
    keys = [f"key{n:03}" for n in range(50)]
    # A hash takes 24 bytes of half of the budget.
    budget = -(-100 * 24 // parts) * 2
    table = table_of(options={"lakehouse.write.memory.budget": str(budget)})
    table.with_options({"lakehouse.write.memory.budget": str(1 << 29)}).upsert(
        pa.concat_tables([rows_of(1, keys), rows_of(2, keys)])
    )
    shares = key_shares(load_slices(table.refresh()), 100, budget)
    assert [share.part for share in shares] == list(range(parts))
    (found,) = global_findings(table)
    assert found.problem.startswith("50 of 100 keys are in several partitions: 'key0")


def test_lost_file_is_reported_as_unchecked(tmp_path: Path) -> None:
    table = table_of(str(tmp_path / "t"))
    table.upsert(rows_of(1, ["a"]))
    table.upsert(rows_of(2, ["b"]))
    (file,) = (tmp_path / "t" / "2").glob("*.parquet")
    file.write_bytes(b"PAR1 is cut off")
    assert [f.problem for f in global_findings(table)] == ["keys were not compared: a file is missing or unreadable"]


def test_unknown_scope_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"keys='globl' is not one of partition, global\. Did you mean 'global'"):
        table_of().validate(keys="globl")


def test_command_accepts_the_scope_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = str(tmp_path / "t")
    table = table_of(location)
    table.upsert(rows_of(1, ["a"]))
    table.upsert(rows_of(2, ["a"]))
    words = ["table", "validate", "--table", location, "--output", "json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert main([*words, "--keys", "global"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["invariant"], found["problem"]) == (
        "key.global",
        "1 of 2 keys are in several partitions: 'a' in '1', '2'",
    )
    assert "GLOBAL_SIMPLE" in found["repair"]


@pytest.mark.parametrize("words", [["table", "create", "--help"], ["ingest", "run", "--help"]])
def test_help_explains_where_keys_are_unique(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(words) == 0
    except SystemExit as end:
        assert end.code == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "unique in each partition" in help_text
    assert "validate --keys global" in help_text
