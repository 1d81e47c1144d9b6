"""Tables of version 6: Apache Hudi 0.15, Hudi 1.2 and lakehouse write them in turn, and hudi-rs reads them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.log.blocks import BlockHeader, encode_block, scan_blocks
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action
from tests.support import hudi_rs
from tests.support.fixture_tables import canonical_rows
from tests.support.hudi import Hudi
from tests.support.hudi_0_15 import (
    BUCKET,
    KINDS,
    OF_1_2_WRITER,
    OF_WRITER,
    TYPE,
    WITHOUT_METADATA,
    fixture_tables,
    killed_at_commit,
    same_rows,
    unpacked,
)
from tests.support.version_6 import SORTED, V6, batch

pytestmark = pytest.mark.jvm

OF_0_15 = OF_WRITER | WITHOUT_METADATA
OF_1_2 = OF_0_15 | OF_1_2_WRITER


def opened(location: str) -> Table:
    return Table.open(location, options=SORTED)


def read_by_all(location: str, hudi: Hudi, hudi_0_15: Hudi) -> dict[str, str]:
    """Assert that all readers return the same rows; return v by id."""
    others = {"0.15": hudi_0_15.read(location), "1.2": hudi.read(location), "rs": hudi_rs.read(location)}
    return same_rows(opened(location).scan().to_arrow(), others)


@pytest.mark.parametrize("kind", KINDS)
def test_table_of_lakehouse_is_continued_by_all_writers(kind: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    table = Table.create(
        location, name="t", record_key="id", partition_by="p", ordering="ts", table_type=kind, options=V6 | SORTED
    )
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    table.upsert(batch(["a1", "b2"], 2, "y"))
    table.delete(batch(["a2"], 3, "").select(["id", "p"]))
    assert read_by_all(location, hudi, hudi_0_15) == {"a1": "y", "b1": "x", "b2": "y"}
    hudi_0_15.write(location, batch(["a1", "b3"], 5, "0.15"), OF_0_15 | {TYPE: kind})
    hudi.write(location, batch(["a1", "b4"], 6, "1.2"), OF_1_2 | {TYPE: kind})
    assert read_by_all(location, hudi, hudi_0_15) == {"a1": "1.2", "b1": "x", "b2": "y", "b3": "0.15", "b4": "1.2"}
    opened(location).upsert(batch(["a1", "b3", "b4"], 7, "ours"))
    # A lower ordering value loses in all writers.
    hudi_0_15.write(location, batch(["a1"], 4, "late"), OF_0_15 | {TYPE: kind})
    assert read_by_all(location, hudi, hudi_0_15) == {"a1": "ours", "b1": "x", "b2": "y", "b3": "ours", "b4": "ours"}
    if kind == "MERGE_ON_READ":
        assert isinstance(opened(location).services.compaction.run(force=True), Committed)
        opened(location).upsert(batch(["a1", "b3"], 8, "after"))
        hudi_0_15.write(location, batch(["b3"], 9, "0.15"), OF_0_15 | {TYPE: kind})
        hudi.write(location, batch(["b3"], 10, "1.2"), OF_1_2 | {TYPE: kind})
        newest = opened(location).upsert(batch(["a1", "b1"], 11, "gone"))
        assert isinstance(newest, Committed)
        opened(location).rollback(newest.instant.requested)
        opened(location).upsert(batch(["b2"], 12, "kept"))
        assert read_by_all(location, hudi, hudi_0_15) == {
            "a1": "after",
            "b1": "x",
            "b2": "kept",
            "b3": "1.2",
            "b4": "ours",
        }
    opened(location).insert_overwrite(batch(["b7", "b8"], 13, "over"))
    assert isinstance(opened(location).services.clustering.run(force=True), Committed)
    hudi_0_15.write(location, batch(["b7"], 14, "0.15"), OF_0_15 | {TYPE: kind})
    opened(location).services.clean.run(force=True)
    hudi.write(location, batch(["b8"], 15, "1.2"), OF_1_2 | {TYPE: kind})
    rows = read_by_all(location, hudi, hudi_0_15)
    assert {key: rows[key] for key in ("b7", "b8")} == {"b7": "0.15", "b8": "1.2"}
    assert opened(location).validate(deep=True).findings == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("creator", ["0.15", "1.2"])
def test_table_of_hudi_is_continued_by_lakehouse(
    kind: str, creator: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    writer, options = (hudi_0_15, OF_0_15) if creator == "0.15" else (hudi, OF_1_2)
    writer.write(location, batch(["a1", "a2", "b1"], 1, "x"), options | {TYPE: kind}, mode="overwrite")
    writer.write(location, batch(["a1", "b1"], 2, "y"), options | {TYPE: kind})
    opened(location).upsert(batch(["a1", "b3"], 3, "ours"))
    assert read_by_all(location, hudi, hudi_0_15) == {"a1": "ours", "a2": "x", "b1": "y", "b3": "ours"}
    assert opened(location).config.raw["hoodie.table.precombine.field"] == "ts"
    hudi_0_15.write(location, batch(["a1"], 4, "0.15"), OF_0_15 | {TYPE: kind})
    hudi.write(location, batch(["b3"], 4, "1.2"), OF_1_2 | {TYPE: kind})
    if kind == "MERGE_ON_READ":
        opened(location).services.compaction.run(force=True)
    opened(location).delete(batch(["a2"], 5, "").select(["id", "p"]))
    assert read_by_all(location, hudi, hudi_0_15) == {"a1": "0.15", "b1": "y", "b3": "1.2"}
    assert opened(location).validate(deep=True).findings == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["0.15", "1.2"])
def test_hudi_rolls_back_a_failed_write_of_lakehouse(
    kind: str, by: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "table")
    table = Table.create(
        location, name="t", record_key="id", partition_by="p", ordering="ts", table_type=kind, options=V6
    )
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    killed_at_commit(monkeypatch, table, batch(["a1", "c1"], 3, "failed"))
    writer, options = (hudi_0_15, OF_0_15) if by == "0.15" else (hudi, OF_1_2)
    writer.write(location, batch(["b1"], 4, by), options | {TYPE: kind})
    assert not [i for i in opened(location).timeline if not i.is_completed]
    assert any(i.action is Action.ROLLBACK for i in opened(location).timeline)
    opened(location).upsert(batch(["a2"], 5, "next"))
    assert read_by_all(location, hudi, hudi_0_15) == {"a1": "y", "a2": "next", "b1": by}
    assert not list(Path(location).glob("c/*.parquet"))
    if kind == "MERGE_ON_READ":
        assert isinstance(opened(location).services.compaction.run(force=True), Committed)
        assert read_by_all(location, hudi, hudi_0_15) == {"a1": "y", "a2": "next", "b1": by}
    assert opened(location).validate(deep=True).corrupt == ()


@pytest.mark.parametrize("name", fixture_tables())
def test_fixture_is_written_and_serviced(name: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path) -> None:
    location = unpacked(name, tmp_path)
    columns = Table.open(location).scan().to_arrow().column_names
    options = {**(SORTED if "v" in columns else {}), **(BUCKET if "bucket" in name else {})}
    table = Table.open(location, options=options | {"hoodie.metadata.enable": "false"})
    if table.config.metadata_partitions:
        table.metadata.rebuild()
        table = Table.open(location, options=options)
    before = table.scan().to_arrow()
    data = before.drop_columns([column for column in before.column_names if column in META_COLUMNS])
    assert isinstance(table.upsert(data), Committed)
    if table.config.is_merge_on_read:
        Table.open(location, options=options).services.compaction.run(force=True)
        assert isinstance(Table.open(location, options=options).upsert(data.slice(0, 1)), Committed)
    Table.open(location, options=options).services.clean.run(force=True)
    after = Table.open(location, options=options).scan().to_arrow()
    assert canonical_rows(after) == canonical_rows(before)
    read_by_all(location, hudi, hudi_0_15)
    report = Table.open(location, options=options).validate(deep=True)
    assert [finding for finding in report.corrupt] == []


def test_hudi_0_15_reads_a_merged_log_after_logs_that_it_does_not_contain(hudi_0_15: Hudi, tmp_path: Path) -> None:
    """This is why log compaction is refused: the row that the third log deletes returns."""
    location = str(tmp_path / "table")
    options = V6 | WITHOUT_METADATA
    table = Table.create(
        location, name="t", record_key="id", ordering="ts", table_type="MERGE_ON_READ", options=options
    )
    table.insert(batch(["a1", "b1"], 1, "x").drop_columns("p"))
    table.upsert(batch(["a1"], 2, "y").drop_columns("p"))
    table.upsert(batch(["b1"], 3, "y").drop_columns("p"))
    table.delete(batch(["a1"], 4, "").select(["id"]))
    assert hudi_0_15.read(location).column("id").to_pylist() == ["b1"]
    add_merged_log(Path(location), 2)
    assert Table.open(location).scan().to_arrow().column("id").to_pylist() == ["b1"]
    assert sorted(hudi_0_15.read(location).column("id").to_pylist()) == ["a1", "b1"]


def add_merged_log(table: Path, count: int) -> None:
    """Add a log with the blocks of the first logs of the only slice, and its delta commit, as log compaction does."""
    logs = sorted(table.glob(".*.log.*"), key=lambda path: int(path.name.split(".log.")[1].split("_")[0]))
    blocks, timeline = [], table / ".hoodie"
    for log in logs[:count]:
        data = log.read_bytes()
        of_log = scan_blocks(io.BytesIO(data))
        blocks += [(block, data[block.offset : block.offset + block.length]) for block in of_log]
    newest = max(timeline.glob("*.deltacommit"), key=lambda path: path.name)
    requested = str(int(newest.name.partition(".")[0]) + 1)
    headers = {
        BlockHeader.INSTANT_TIME: requested,
        BlockHeader.COMPACTED_BLOCK_TIMES: ",".join(block.instant for block, _ in blocks),
    }
    merged = [encode_block(block.kind, {**block.headers, **headers}, content) for block, content in blocks]
    name = f"{logs[0].name.partition('.log.')[0]}.log.{len(logs) + 1}_9-9-9"
    (table / name).write_bytes(b"".join(merged))
    commit = json.loads(newest.read_text())
    commit["partitionToWriteStats"][""][0]["path"] = name
    for state in ("requested", "inflight"):
        (timeline / f"{requested}.logcompaction.{state}").touch()
    (timeline / f"{requested}.deltacommit").write_text(json.dumps(commit))
