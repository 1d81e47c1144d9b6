"""Roll back failed writes of Apache Hudi, with each of its marker types."""

from __future__ import annotations

import pytest

from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action
from tests.support.tables import base_files, batch, data_rows, make_table, row

DEAD = "20250101000000000"
FILES = (f"a/11111111-2222-4333-8444-555555555555-0_0-14-17_{DEAD}.parquet", f"b/x-0_1-14-18_{DEAD}.parquet")


def with_failed_write(markers: dict[str, str]) -> Table:
    """Return a table with one row and a write of Hudi that died after it wrote FILES."""
    table = make_table()
    table.upsert(batch([row("k1")]))
    storage = table.refresh().env.storage
    storage.put(f".hoodie/timeline/{DEAD}.commit.requested", b"")
    storage.put(f".hoodie/timeline/{DEAD}.inflight", b"")
    for path in FILES:
        storage.put(path, b"PAR1 half a file")
    for name, content in markers.items():
        storage.put(f".hoodie/.temp/{DEAD}/{name}", content.encode())
    return table


@pytest.mark.parametrize(
    "markers",
    [
        {"MARKERS.type": "TIMELINE_SERVER_BASED", "MARKERS0": "".join(f"{path}.marker.CREATE\n" for path in FILES)},
        {
            "MARKERS.type": "TIMELINE_SERVER_BASED",
            "MARKERS0": f"{FILES[0]}.marker.MERGE\n",
            "MARKERS12": f"{FILES[1]}.marker.CREATE\n",
        },
        {f"{path}.marker.CREATE": "" for path in FILES},
        {},
    ],
    ids=["timeline-server", "several-files", "direct", "none"],
)
def test_next_write_deletes_files_of_a_failed_hudi_write(markers: dict[str, str]) -> None:
    table = with_failed_write(markers)
    table.upsert(batch([row("k2")]))
    storage = table.refresh().env.storage
    assert [r["id"] for r in data_rows(table)] == ["k1", "k2"]
    assert {base.instant for base in base_files(storage)} == {instant.requested for instant, _ in table.commits()}
    assert [instant.action for instant in table.timeline] == [Action.COMMIT, Action.ROLLBACK, Action.COMMIT]
    assert storage.list(".hoodie/.temp") == []
