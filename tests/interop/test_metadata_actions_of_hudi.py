"""Apache Hudi rolls back, clusters, cleans and compacts tables with our metadata table; lakehouse writes on (MDT-9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, State
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi, HudiError
from tests.support.metadata_check import check_metadata
from tests.support.metadata_files import partitions
from tests.support.metadata_referee import MetadataReferee

pytestmark = pytest.mark.jvm

T = TypeVar("T")
METADATA_OPTIONS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.index.bloom.filter.file.group.count": "1",
    "hoodie.metadata.index.column.stats.enable": "true",
}
LISTED = ("bloom_filters", "column_stats", "files", "partition_stats", "record_index")
#: Every write starts file groups, so that a clustering has something to do.
NEW_GROUPS = {"hoodie.parquet.small.file.limit": "0", "hoodie.index.type": "RECORD_INDEX"}
HUDI = {
    **METADATA_OPTIONS,
    **NEW_GROUPS,
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.metadata.auto.delete.partitions": "false",
    "hoodie.clean.automatic": "false",
}
INLINE = {
    "hoodie.clustering.inline": "true",
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
}
SQL = {
    key.replace(".", "__"): value
    for key, value in {**METADATA_OPTIONS, "hoodie.metadata.auto.delete.partitions": "false"}.items()
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("v", pa.string()),
        ("items", pa.list_(pa.int32())),
    ]
)
#: The step of our write before which it crashes, by table type: the metadata table has recorded the write, or has not.
CRASHES = {
    "COPY_ON_WRITE": r"create \.hoodie/timeline/\d+_\d+\.commit",
    "MERGE_ON_READ": r"create \.hoodie/metadata/\.hoodie/timeline/\d+_\d+\.deltacommit",
}


def rows(ids: range, ts: int, v: str, items: tuple[int | None, ...] = (1,)) -> pa.Table:
    listed = [{"id": f"k{n}", "p": "ab"[n % 2], "ts": ts, "v": v, "items": list(items)} for n in ids]
    return pa.Table.from_pylist(listed, SCHEMA)


class CrashesBefore(FaultyStorage):
    """A store whose process crashes before the first step that matches a pattern."""

    def __init__(self, location: str, pattern: str) -> None:
        super().__init__(LocalStorage(location))
        self._pattern = pattern

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Crash if the name of the step matches."""
        if re.fullmatch(self._pattern, name):
            self.fail_at = self.steps + 1
        return super().step(name, call)


def fail(hudi: Hudi, table: Table, options: dict[str, str]) -> None:
    """Let a write of Hudi fail after it opened its delta commit of the metadata table."""
    with pytest.raises(HudiError):  # Hudi's default list structure allows no null elements
        hudi.write(table.location, rows(range(40), 50, "failed", (None,)), options)
    assert len(tuple(table.timeline.where(pending=True))) == 1


def check(table: Table, expected: dict[str, str]) -> None:
    """Assert that the rows are right and the metadata table, with all its partitions, equals the files."""
    found = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert {r["id"]: r["v"] for r in found} == expected
    assert len(found) == len(expected)
    assert partitions(table.refresh().env.storage) == LISTED
    check_metadata(table)
    report = table.metadata.validate()
    assert report.ok, report


def done(table: Table, action: Action) -> int:
    return len(table.timeline.where(action=action, state=State.COMPLETED))


@pytest.mark.parametrize("kind", CRASHES)
def test_hudi_undoes_and_services_tables_with_our_metadata_table(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    location, options = str(tmp_path / "table"), HUDI | {"hoodie.datasource.write.table.type": kind}
    table = Table.create(
        location,
        name="events",
        record_key=["id"],
        partition_by=["p"],
        table_type=kind,
        ordering="ts",
        schema=SCHEMA,
        options=METADATA_OPTIONS | NEW_GROUPS,
    )
    table.insert(rows(range(12), 1, "ours"))
    with pytest.raises(SimulatedCrash):
        crashing = Env(storage=CrashesBefore(location, CRASHES[kind]))
        Table.open(location, env=crashing).upsert(rows(range(8, 20), 2, "crashed"))

    hudi.write(location, rows(range(8, 14), 3, "theirs"), options)
    expected = {f"k{n}": "ours" if n < 8 else "theirs" for n in range(14)}
    assert done(table, Action.ROLLBACK) == 1
    check(table, expected)

    if kind == "MERGE_ON_READ":
        fail(hudi, table, options)
    table.upsert(rows(range(12, 18), 4, "ours 2"))
    expected |= {f"k{n}": "ours 2" for n in range(12, 18)}
    assert done(table, Action.ROLLBACK) == (2 if kind == "MERGE_ON_READ" else 1)
    check(table, expected)

    if kind == "MERGE_ON_READ":
        table.upsert(rows(range(4, 30), 5, "rolled back"))
        newest = table.timeline.writes().by_completion()[-1].requested
        text = f"CALL rollback_to_instant(table => '{{table}}', instant_time => '{newest}')"
        hudi.sql(text, table=location, **SQL)
        check(table, expected)

    table.upsert(rows(range(16, 22), 6, "ours 3"))
    expected |= {f"k{n}": "ours 3" for n in range(16, 22)}
    if kind == "COPY_ON_WRITE":
        fail(hudi, table, options)
        hudi.write(location, rows(range(2, 6), 7, "theirs 2"), options | INLINE)
        expected |= {f"k{n}": "theirs 2" for n in range(2, 6)}
    else:
        text = "CALL run_compaction(op => 'scheduleAndExecute', table => '{table}')"
        hudi.sql(text, table=location, hoodie__compact__inline__max__delta__commits="1", **SQL)
        hudi.sql("CALL run_clustering(table => '{table}')", table=location, **SQL)
        table.upsert(rows(range(2, 6), 7, "ours 4"))
        expected |= {f"k{n}": "ours 4" for n in range(2, 6)}
        hudi.sql("CALL run_clean(table => '{table}', retain_commits => 1)", table=location, **SQL)
        assert done(table, Action.COMMIT) == 1
    assert (done(table, Action.REPLACECOMMIT), done(table, Action.CLEAN)) == (1, 1)
    check(table, expected)

    table.upsert(rows(range(0, 24), 8, "ours 5"))
    expected |= {f"k{n}": "ours 5" for n in range(24)}
    check(table, expected)
    assert_hudi_reads_the_same(hudi, table)
    # Statistics of partitions may be wider, because Hudi's clustering counts the file groups that it replaces.
    found = [text for text in metadata_referee.differences(location) if not text.startswith("('partition_stats'")]
    assert not found, "\n".join(found)
