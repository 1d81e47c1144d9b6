"""Log blocks may name base rows by position: of rows with the same key, the named ones are matched, as in Hudi."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.files.keys.key_matches import MatchCollector
from lakehouse.core.format.log.blocks import BlockHeader, block_frame, scan_blocks
from lakehouse.core.format.log.record_positions import encode_positions
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.table.table import Table
from lakehouse.model.files import FileSlice
from tests.support.commits import restate
from tests.support.tables import batch, make_env, row


@pytest.fixture(autouse=True)
def logs_of_hudi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Append changes of repeated keys to logs, as Hudi does. Our writes would replace the base file."""
    monkeypatch.setattr(MatchCollector, "repeated_key", lambda _: None)


def twice(**options: str) -> Table:
    """Return a table whose one base file has key a in rows 0 and 2 and key b in row 1."""
    env = make_env()
    table = Table.create(
        env.storage.root,
        name="t",
        record_key=["id"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        # `name_rows` replaces a committed log, whose size a metadata table would have.
        options={"lakehouse.write.memory.budget": "2000", "hoodie.metadata.enable": "false"} | options,
        env=env,
    )
    table.bulk_insert(batch([row("a", ts=1, v="one"), row("b", ts=1, v="b"), row("a", ts=5, v="two")]))
    return table


def name_rows(table: Table, positions: list[int], base_instant: str = "") -> Table:
    """Add row positions of the base file to the newest log; return the table, opened again."""
    storage, file_slice = table.refresh().env.storage, slice_of(table)
    log, base = file_slice.logs[-1], file_slice.base
    assert base is not None
    with storage.open_input(log.path) as source:
        (block,) = scan_blocks(source)
        source.seek(block.offset)
        content = bytes(source.read(block.length))
    headers = {
        **block.headers,
        BlockHeader.RECORD_POSITIONS: encode_positions(np.array(positions, np.int64)),
        BlockHeader.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: base_instant or base.instant,
    }
    before, after = block_frame(block.kind, headers, len(content))
    storage.delete_many([log.path])
    storage.create(log.path, before + content + after)
    restate(storage, log.path)
    return Table.open(storage.root, env=table.refresh().env)


def slice_of(table: Table) -> FileSlice:
    (file_slice,) = load_slices(table.refresh())
    return file_slice


def values(table: Table) -> list[tuple[Any, ...]]:
    rows: pa.Table = table.scan(["id", "v"]).to_arrow()
    return sorted((r["id"], r["v"]) for r in rows.to_pylist())


def test_rows_with_one_key_are_updated_at_the_named_positions() -> None:
    table = twice()
    table.upsert(batch([row("a", ts=5, v="new")]))
    assert values(table) == [("a", "new"), ("a", "two"), ("b", "b")]
    table = name_rows(table, [0, 2])
    assert values(table) == [("a", "new"), ("a", "new"), ("b", "b")]
    table = name_rows(table, [2])
    assert values(table) == [("a", "new"), ("a", "one"), ("b", "b")]


def test_each_row_of_a_key_is_compared_separately() -> None:
    table = twice()
    table.upsert(batch([row("a", ts=3, v="between")]))
    table = name_rows(table, [0, 2])
    assert values(table) == [("a", "between"), ("a", "two"), ("b", "b")]


def test_deletes_that_name_rows_remove_all_of_them() -> None:
    table = twice()
    table.delete(["a"])
    table = name_rows(table, [0, 2])
    assert values(table) == [("b", "b")]


@pytest.mark.parametrize("other", ["of another base file", "a log that names none"])
def test_positions_are_used_only_if_all_logs_name_rows_of_this_base_file(other: str) -> None:
    table = twice()
    table.upsert(batch([row("a", ts=6, v="new")]))
    if other == "of another base file":
        table = name_rows(table, [0, 2], base_instant="20200101000000000")
    else:
        table = name_rows(table, [0, 2])
        table.upsert(batch([row("b", ts=6, v="b2")]))
    assert ("a", "two") in values(table) and ("a", "new") in values(table)


def test_compaction_keeps_visible_rows_and_counts_log_blocks() -> None:
    table = twice()
    table.upsert(batch([row("a", ts=6, v="new")]))
    table = name_rows(table, [0, 2])
    before = values(table)
    table.services.compaction.run(force=True)
    assert values(table) == before
    stats = table.commits()[-1][1].stats
    assert [(stat.log_blocks, stat.log_records) for stat in stats] == [(1, 1)]
