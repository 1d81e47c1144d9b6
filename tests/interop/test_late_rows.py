"""Late rows after deletes: Hudi and lakehouse keep deletes equally long, and Hudi reads tables with delete retention.

Behaviour of Hudi 1.2 with event-time ordering, and of lakehouse without `lakehouse.delete_retention`:

    copy-on-write                       the delete is lost with the row: a late row is inserted again
    merge-on-read, simple or bucket     an upsert goes to the group whose log has the delete: the delete wins
    ... insert, simple                  no key lookup: the late row is inserted into a new group
    ... insert, bucket                  the delete wins
    ... after the compaction            the delete is lost
    merge-on-read, global simple        the key of a deleted row is not found: the late row is inserted again
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same, assert_same
from tests.interop.mor_tables import BUCKETS, HUDI_OPTIONS, NO_SMALL_FILES, ORDERED, PARTITIONED
from tests.support import hudi_rs
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, SCHEMA, batch, row

Rows = list[dict[str, Any]]
KINDS = {
    "copy-on-write": ("COPY_ON_WRITE", {"hoodie.index.type": "SIMPLE"}),
    "simple": ("MERGE_ON_READ", {"hoodie.index.type": "SIMPLE"}),
    "global": ("MERGE_ON_READ", {"hoodie.index.type": "GLOBAL_SIMPLE"}),
    "bucket": ("MERGE_ON_READ", {**BUCKETS, "hoodie.bucket.index.num.buckets": "1"}),
}
#: Visible keys after deletes with ordering value 10 and late rows with 7: before the compaction, and at the end.
SHOWN = {
    "copy-on-write": ({"insert", "newer", "tie", "upsert"}, {"after", "insert", "newer", "tie", "upsert"}),
    "simple": ({"insert", "newer", "tie"}, {"after", "insert", "newer", "tie"}),
    "global": ({"insert", "newer", "tie", "upsert"}, {"after", "insert", "newer", "tie", "upsert"}),
    "bucket": ({"newer", "tie"}, {"after", "newer", "tie"}),
}


def steps() -> Iterator[tuple[str, Rows]]:
    """Yield the steps of a test: operation and rows."""
    names = ("upsert", "insert", "newer", "tie", "after")
    yield "upsert", [row(name, ts=5) for name in (*names, "stays")]
    yield "upsert", [row(name, ts=10, **{DELETED: True}) for name in names]
    yield "upsert", [row("upsert", ts=7), row("newer", ts=12), row("tie", ts=10)]
    yield "insert", [row("insert", ts=7)]
    yield "look", []
    yield "compact", []
    yield "upsert", [row("after", ts=7)]


def create(directory: Path, name: str, **options: str) -> Table:
    """Create a table of lakehouse of this kind."""
    type, index = KINDS[name]
    return Table.create(
        str(directory / "ours"),
        name="ours",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        schema=SCHEMA,
        table_type=type,
        options={**index, **NO_SMALL_FILES, **{key.replace("__", "."): value for key, value in options.items()}},
    )


def shown(rows: Any) -> set[str]:
    """Return the keys of rows, except `stays`, which is never deleted."""
    return set(rows.column("id").to_pylist()) - {"stays"}


@pytest.mark.parametrize("name", KINDS)
def test_lakehouse_keeps_deletes_until_the_expected_step(name: str, tmp_path: Path) -> None:
    table, seen = create(tmp_path, name), []
    for verb, rows in steps():
        if verb == "look":
            seen.append(shown(table.scan().to_arrow()))
        elif verb != "compact":
            getattr(table, verb)(batch(rows))
        elif table.config.is_merge_on_read:
            assert isinstance(table.services.compaction.run(force=True), Committed)
    seen.append(shown(table.scan().to_arrow()))
    assert tuple(seen) == SHOWN[name]
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))


@pytest.mark.jvm
@pytest.mark.parametrize("name", KINDS)
def test_hudi_keeps_deletes_until_the_expected_step(name: str, hudi: Hudi, tmp_path: Path) -> None:
    location, (type, index), seen = str(tmp_path / "theirs"), KINDS[name], []
    kind = {"hoodie.datasource.write.table.type": type, "hoodie.record.merge.mode": "EVENT_TIME_ORDERING"}
    options = HUDI_OPTIONS | ORDERED | PARTITIONED | NO_SMALL_FILES | index | kind
    for verb, rows in steps():
        if verb == "look":
            seen.append(shown(hudi.read(location)))
        elif verb != "compact":
            hudi.write(location, batch(rows), options | {"hoodie.datasource.write.operation": verb})
        elif type == "MERGE_ON_READ":
            due = "options => 'hoodie.compact.inline.max.delta.commits=1'"
            text = f"CALL run_compaction(path => '{location}', op => 'scheduleAndExecute', {due})"
            hudi.sql(text, hoodie__metadata__enable="false")
    seen.append(shown(hudi.read(location)))
    assert tuple(seen) == SHOWN[name]


@pytest.mark.jvm
@pytest.mark.parametrize("name", ["simple"])
def test_hudi_reads_a_table_with_delete_retention_like_lakehouse(name: str, hudi: Hudi, tmp_path: Path) -> None:
    table = create(tmp_path, name, lakehouse__delete_retention="7d")
    for verb, rows in steps():
        if verb in ("upsert", "insert"):
            getattr(table, verb)(batch(rows))
        elif verb == "compact" and table.config.is_merge_on_read:
            assert isinstance(table.services.compaction.run(force=True), Committed)
    assert shown(table.scan().to_arrow()) == {"newer", "tie"}
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert_hudi_reads_the_same(hudi, table, past=True)
    # The retained deletes still apply after a write of Hudi.
    more = HUDI_OPTIONS | ORDERED | PARTITIONED | {"hoodie.table.name": "ours"} | KINDS[name][1]
    hudi.write(table.location, batch([row("theirs", ts=1)]), more)
    assert table.upsert(batch([row("after", ts=7)])).late_rows_dropped == 1
    assert shown(table.scan().to_arrow()) == {"newer", "tie", "theirs"}
