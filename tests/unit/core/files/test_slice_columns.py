"""Reading some columns of slices with logs returns the same values as reading all columns."""

from __future__ import annotations

import pytest

from lakehouse.core.table.table import Table
from lakehouse.model.merge import MergeMode
from tests.support.tables import DELETED, SCHEMA, batch, make_env, row


@pytest.mark.parametrize("mode", [MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING])
@pytest.mark.parametrize("columns", [["v"], ["amount", "v"], ["ts"], ["_hoodie_record_key"]])
def test_columns_read_alone_equal_those_of_the_whole_row(mode: MergeMode, columns: list[str]) -> None:
    env = make_env()
    table = Table.create(
        env.storage.root,
        name="t",
        record_key=["id"],
        ordering="ts",
        schema=SCHEMA,
        merge_mode=mode,
        table_type="MERGE_ON_READ",
        env=env,
    )
    table.upsert(batch([row(f"k{i}", ts=5, v=f"v{i}") for i in range(5)]))
    table.upsert(batch([row("k0", ts=4, v="earlier"), row("k1", ts=6, v="later"), row("k2", ts=6, **{DELETED: True})]))
    table.delete(["k3"])
    whole = table.scan().to_arrow()
    assert whole.num_rows == 3
    part = table.scan(columns).to_arrow()
    assert sorted(part.to_pylist(), key=repr) == sorted(whole.select(columns).to_pylist(), key=repr)
    table.upsert(batch([row("k2", ts=1, v="back")]))
    # By event time the row is older than the delete of its key; by commit time it is newer.
    back = ["k2"] if mode is MergeMode.COMMIT_TIME_ORDERING else []
    assert sorted(r["id"] for r in table.scan(["id"]).to_arrow().to_pylist()) == ["k0", "k1", *back, "k4"]
