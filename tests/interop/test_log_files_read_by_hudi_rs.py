"""hudi-rs reads merge-on-read tables of lakehouse like lakehouse does; each known difference has a test."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_same
from tests.interop.mor_tables import (
    BUCKETS,
    BUCKETS_BEGIN_IN_LOGS,
    KINDS,
    VERSION_8,
    WITHOUT_FLAG,
    Kind,
    create,
    history_steps,
    values,
    write_partial_updates,
)
from tests.interop.rows import EVERYTHING, everything, nothing
from tests.support import hudi_rs
from tests.support.tables import DELETED, SCHEMA, batch, row

PARTIAL_KINDS = {
    "simple": Kind(),
    "commit-8": Kind(event=False, options=VERSION_8),
    "bucket": Kind(options=BUCKETS),
    "bucket-in-logs": Kind(options=BUCKETS_BEGIN_IN_LOGS),
}
#: hudi-rs 0.5 reads no rows of file groups without base file if the table has a metadata table, also of Hudi's tables.
WITHOUT_METADATA = {"hoodie.metadata.enable": "false"}
# hudi-rs panics on log files with timestamps without time zone.
KNOWN_TYPES = pa.schema([field for field in EVERYTHING if field.name != "local"])


def readable(kind: Kind) -> Kind:
    """Return the kind, without metadata table if file groups begin with log files."""
    begins_in_logs = kind.options.items() >= BUCKETS_BEGIN_IN_LOGS.items()
    return replace(kind, options={**kind.options, **WITHOUT_METADATA}) if begins_in_logs else kind


def assert_same_reads(table: Table, *, increments: bool) -> None:
    """Compare the latest snapshot, each older one and, with `increments`, the changes of each range."""
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    commits = [instant for instant, _ in table.commits()]
    for instant in commits:
        past = table.scan(as_of=instant.requested).to_arrow()
        assert_same(past, hudi_rs.read_as_of(table.location, instant.requested))
    ends = [instant.completion for instant in commits] if increments else []
    for start, end in combinations(ends, 2):
        changed = table.incremental(start, end).to_arrow()
        assert_same(changed, hudi_rs.read_incremental(table.location, start, end))


@pytest.mark.parametrize("name", KINDS)
def test_hudi_rs_reads_log_files_like_lakehouse(name: str, tmp_path: Path) -> None:
    table = create(readable(KINDS[name]), tmp_path)
    for _ in history_steps(table):
        assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert len(table.commits()) == 11
    assert_same_reads(table, increments=not KINDS[name].event)


def test_hudi_rs_omits_a_late_row_from_a_range_with_a_compaction(tmp_path: Path) -> None:
    table = create(Kind(partitioned=False), tmp_path)
    table.upsert(batch([row("a", ts=5)]))
    table.upsert(batch([row("a", ts=6, v="compacted")]))
    table.services.compaction.run(force=True)
    table.upsert(batch([row("a", ts=4, v="late")]))
    (_, written, compacted, end) = (instant.completion for instant, _ in table.commits())
    for start in (written, compacted):
        # Hudi and lakehouse merge only rows written in the range; no row of the base file is one of them.
        assert table.incremental(start, end).to_arrow().column("v").to_pylist() == ["late"]
    assert hudi_rs.read_incremental(table.location, compacted, end).column("v").to_pylist() == ["late"]
    assert hudi_rs.read_incremental(table.location, written, end).num_rows == 0


@pytest.mark.parametrize("schema", [SCHEMA, WITHOUT_FLAG], ids=["completed", "partial"])
@pytest.mark.parametrize("name", PARTIAL_KINDS)
def test_hudi_rs_reads_partial_updates_like_lakehouse(name: str, schema: pa.Schema, tmp_path: Path) -> None:
    table = create(readable(PARTIAL_KINDS[name]), tmp_path, schema=schema)
    write_partial_updates(table)
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert values(table)["k0"] == "whole" and values(table, "amount")["k0"] == 1.25


@pytest.mark.parametrize("version", [8, 9])
def test_hudi_rs_reads_all_types_in_log_files_like_lakehouse(version: int, tmp_path: Path) -> None:
    options = {"hoodie.write.table.version": str(version)}
    table = create(Kind(partitioned=False, options=options), tmp_path, schema=KNOWN_TYPES)
    first = [{name: r.get(name) for name in KNOWN_TYPES.names} for r in (everything(1), everything(2), nothing(1))]
    table.upsert(pa.Table.from_pylist(first, schema=KNOWN_TYPES))
    table.upsert(pa.Table.from_pylist([first[0] | {"ts": 9, "items": [], "raw": None}], schema=KNOWN_TYPES))
    assert len(table.scan().to_arrow()) == 3
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))


def test_hudi_rs_orders_a_row_without_ordering_value_below_others(tmp_path: Path) -> None:
    table = create(Kind(partitioned=False), tmp_path)
    table.upsert(batch([row("a", ts=5, v="first"), row("b", ts=None, v="first"), row("c", ts=5)]))
    table.upsert(batch([row("a", ts=None, v="low"), row("b", ts=1, v="over"), row("c", ts=None, **{DELETED: True})]))
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert values(table) == {"a": "first", "b": "over"}


def test_hudi_rs_fills_unavailable_values_like_lakehouse(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string())])
    table = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key=["id"],
        ordering="ts",
        schema=schema,
        table_type="MERGE_ON_READ",
        partial_update="FILL_UNAVAILABLE",
    )
    table.upsert(pa.Table.from_pylist([{"id": i, "ts": 5, "v": f"v{i}"} for i in "ab"], schema))
    unavailable = "__debezium_unavailable_value"
    later = [{"id": "a", "ts": 6, "v": unavailable}, {"id": "b", "ts": 4, "v": "late"}]
    table.upsert(pa.Table.from_pylist(later, schema))
    assert values(table) == {"a": "va", "b": "vb"}
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))


def test_hudi_rs_rejects_several_ordering_columns(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key=["id"], ordering=["ts", "at"], table_type="MERGE_ON_READ"
    )
    table.upsert(batch([row("a", ts=1, at=1, v="first")]))
    table.upsert(batch([row("a", ts=1, at=0, v="late")]))
    assert values(table) == {"a": "first"}
    with pytest.raises(Exception, match="Multiple ordering fields 'ts,at' are not yet supported"):
        hudi_rs.read(table.location)
