"""Compaction with a concurrent write that changes the schema: both commit, and no column is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.services import compaction
from lakehouse.core.operations.services.service import ServiceRequest
from lakehouse.core.table.table import Table
from lakehouse.spec.options.policies import Policies
from tests.support.tables import SCHEMA, Shape, batch, data_rows, make_env, row


class Interrupting(LocalEngine):
    """Calls `act` once, after the tasks of a run and before the run returns."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(parallelism=1)
        self._act: Callable[[], Any] | None = act

    def run(self, function: Any, tasks: Any, *, light: bool = False) -> list[Any]:
        """Run the tasks, then call `act` once."""
        results = super().run(function, tasks, light=light)
        act, self._act = self._act, None
        if act is not None:
            act()
        return results


@pytest.fixture
def table() -> Table:
    env = make_env()
    made = Table.create(
        env.storage.root,
        name="events",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        schema=SCHEMA,
        options=Shape().table_options(),
        env=env,
    )
    made.upsert(batch([row("a"), row("b")]))
    made.upsert(batch([row("a", ts=2, v="x")]))
    return made


def widened(**values: Any) -> pa.Table:
    return batch([row("b", ts=3) | values], pa.schema([*SCHEMA, ("extra", pa.string())]))


def test_compaction_keeps_a_column_added_by_a_concurrent_write(table: Table) -> None:
    planned = table.services.compaction.schedule(force=True)
    engine = Interrupting(lambda: table.upsert(widened(extra="new")))
    outcome = compaction.run(table.refresh(), engine, Policies(), ServiceRequest(instant=planned.requested))
    assert isinstance(outcome, Committed)
    assert "extra" in table.schema.names
    assert [(r["id"], r["v"], r["extra"]) for r in data_rows(table)] == [("a", "x", None), ("b", None, "new")]


def test_write_that_adds_a_column_commits_after_a_concurrent_compaction(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = table.services.compaction.schedule(force=True)
    engine = Interrupting(lambda: table.services.compaction.run(instant=planned.requested))
    monkeypatch.setattr("lakehouse.core.engine.adapters.LocalEngine", lambda: engine)
    assert isinstance(table.upsert(widened(extra="new")), Committed)
    assert [i.action.value for i, _ in table.commits()] == ["deltacommit", "deltacommit", "commit", "deltacommit"]
    assert [(r["id"], r["v"], r["extra"]) for r in data_rows(table)] == [("a", "x", None), ("b", None, "new")]
