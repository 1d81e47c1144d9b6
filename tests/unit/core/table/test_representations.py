"""What a shell and a notebook show for the values of the Table API."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.model.compaction import CompactionPlan
from lakehouse.platform.catalog.catalog import load_catalog
from tests.support.tables import make_table

ROWS = pa.table({"id": ["a", "b", "c"], "v": [1, 2, 3], "ts": [1, 1, 1]})
CHANGED = pa.table({"id": ["a", "d"], "v": [9, 4], "ts": [2, 2]})


def made(tmp_path: Path) -> tuple[Table, CountingStorage]:
    """Return a merge-on-read table with three rows, on a storage that counts requests."""
    storage = CountingStorage(LocalStorage(str(tmp_path / "orders")))
    table = Table.create(
        storage.root,
        name="orders",
        record_key="id",
        ordering="ts",
        schema=ROWS.schema,
        table_type="MERGE_ON_READ",
        env=Env(storage=storage),
    )
    return table, storage


def committed(outcome: Committed | NothingToDo) -> Committed:
    """Return an outcome that is a commit."""
    assert isinstance(outcome, Committed)
    return outcome


def test_commit_shows_its_changes_files_and_size(tmp_path: Path) -> None:
    table, _ = made(tmp_path)
    first = committed(table.upsert(ROWS))
    assert repr(first).startswith(f"commit {first.instant.requested}: 3 inserted, 1 file, ")
    second = committed(table.upsert(CHANGED))
    assert repr(second).startswith(f"commit {second.instant.requested}: 1 inserted, 1 updated, 1 file, ")
    third = committed(table.delete(["b"]))
    assert repr(third).startswith(f"commit {third.instant.requested}: 1 deleted, 1 file, ")
    assert repr(table.commits()[-1][1]).startswith("delete: 1 deleted, 1 file, ")
    assert "<td" in first._repr_html_() and "3 inserted" in first._repr_html_()


def test_table_shows_name_type_columns_and_location_without_a_request(tmp_path: Path) -> None:
    table, storage = made(tmp_path)
    assert repr(table) == f"Table orders (merge_on_read, 3 columns, at {storage.root})"
    table.upsert(ROWS)
    assert table.schema.names == ["id", "v", "ts"]
    values = (
        table,
        table.services,
        table.services.compaction,
        table.services.bloom_filters,
        table.scan(["id"], "v > 1", read_optimized=True),
        table.incremental("earliest"),
        table.scan().plan(),
        table.commits(),
    )
    storage.reset()
    lines = [f"{value!r}" for value in values] + [v._repr_html_() for v in values if not isinstance(v, tuple)]
    assert sum(storage.counts().values()) == 0
    assert lines[0] == f"Table orders (merge_on_read, 3 columns, at {storage.root})"
    assert lines[1] == (
        "table services of orders: compaction, logcompaction, clustering, index, ttl, clean, archive, "
        "orphans, validation, bloom_filters"
    )
    assert lines[2] == "compaction of orders: due(), plan(), schedule(), run(), cost()"
    assert lines[4] == "scan of orders, base files only, columns id, where v > 1"
    assert lines[5] == "incremental scan of orders, commits after earliest"
    assert lines[6].startswith("planned scan: 1 file slice, ") and lines[6].endswith(", 8 columns")


def test_opened_table_shows_its_columns_only_after_the_schema_was_read(tmp_path: Path) -> None:
    table, storage = made(tmp_path)
    table.upsert(ROWS)
    opened = Table.open(storage.root)
    assert repr(opened) == f"Table orders (merge_on_read, at {storage.root})"
    assert opened.schema.names == ["id", "v", "ts"]
    assert repr(opened) == f"Table orders (merge_on_read, 3 columns, at {storage.root})"


def test_service_values_show_conditions_plans_and_costs(tmp_path: Path) -> None:
    table, _ = made(tmp_path)
    table.upsert(ROWS)
    table.upsert(pa.table({"id": ["a"], "v": [9], "ts": [2]}))
    compaction = table.services.compaction
    due = compaction.due()
    assert repr(due) == f"not due: {due.reason}"
    plan = compaction.plan(force=True)
    assert isinstance(plan, CompactionPlan)
    assert repr(plan).startswith("compaction plan: 1 file group, ") and repr(plan).endswith(", 1 partition")
    cost = compaction.cost()
    assert isinstance(cost, ServiceCost) and repr(cost).startswith("cost: ") and "benefit" in repr(cost)
    nothing = compaction.plan()
    assert isinstance(nothing, NothingToDo) and repr(nothing) == f"nothing to do: {nothing.reason}"
    done = committed(compaction.run(force=True))
    assert repr(done).startswith(f"compaction {done.instant.requested}: 3 rows rewritten, ")
    assert repr(done.instant) == f"commit {done.instant.requested}: completed, {done.instant.completed}"
    assert repr(table.timeline).startswith("timeline of 3 instants, from ")


def test_values_with_equal_fields_are_equal_and_hashable() -> None:
    assert ServiceCost(files=1) == ServiceCost(files=1) != ServiceCost(files=2)
    assert len({ServiceCost(files=1), ServiceCost(files=1)}) == 1


def test_html_escapes_names_of_other_writers(tmp_path: Path) -> None:
    name = "<script>x</script>"
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", schema=pa.schema({"id": pa.string()}))
    scan = table.scan(where=f"id = '{name}'")
    assert name not in scan._repr_html_() and "&lt;script&gt;" in scan._repr_html_()
    assert make_table().services._repr_html_().count("http") == 0


def test_catalog_and_its_entries_show_location_and_version(tmp_path: Path) -> None:
    table, storage = made(tmp_path)
    table.upsert(ROWS)
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        catalog.register_table("sales.orders", storage.root)
        (entry,) = catalog.list_tables()
        assert repr(catalog) == f"Catalog at sqlite:///{tmp_path}/catalog.db"
        assert repr(entry) == f"catalog entry sales.orders: version 1 of its spec, at {storage.root}"
