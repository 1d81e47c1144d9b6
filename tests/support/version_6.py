"""Tables of version 6 and their log files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.log.blocks import LogBlock, scan_blocks
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.model.instant import WRITE_ACTIONS, Instant

V6 = {"hoodie.write.table.version": "6"}
SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "v"}
MANY_WRITERS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "0",
}
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.string())])


def batch(ids: Iterable[str], ts: int, v: str) -> pa.Table:
    """Return rows whose partition is the first letter of the id."""
    return pa.Table.from_pylist([{"id": i, "p": i[0], "ts": ts, "v": v} for i in ids], schema=SCHEMA)


def created(path: Path, kind: str = "MERGE_ON_READ", **declared: Any) -> Table:
    options = V6 | declared.pop("options", {})
    return Table.create(
        str(path / "table"),
        **{"name": "t", "record_key": "id", "partition_by": "p", "ordering": "ts", **declared},
        table_type=kind,
        options=options,
    )


def values(table: Table) -> dict[str, str]:
    rows = Table.open(table.location).scan(["id", "v"]).to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def assert_valid(table: Table) -> None:
    assert Table.open(table.location).validate(deep=True).findings == ()


def properties(table: Table) -> dict[str, str]:
    lines = (Path(table.location) / ".hoodie/hoodie.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def logs(table: Table, partition: str = "a") -> list[str]:
    return sorted(path.name for path in (Path(table.location) / partition).glob(".*.log.*"))


def blocks(table: Table, name: str, partition: str = "a") -> list[LogBlock]:
    with (Path(table.location) / partition / name).open("rb") as file:
        return scan_blocks(file)


def instants(table: Table) -> set[str]:
    names = {path.name for path in (Path(table.location) / ".hoodie").iterdir() if path.name[0].isdigit()}
    return {name.partition(".")[2] for name in names}


def committed(outcome: object) -> Instant:
    assert isinstance(outcome, Committed)
    return outcome.instant


# --- properties and instants


def failing(monkeypatch: pytest.MonkeyPatch, table: Table, rows: pa.Table) -> str:
    """Write rows; the process ends before the commit. Returns the requested time of the pending write."""
    from lakehouse.core.operations.write import write

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(write, "complete_commit", lambda *_: (_ for _ in ()).throw(Killed()))
        patch.setattr(write, "abandon", lambda *_: False)
        with pytest.raises(Killed):
            table.upsert(rows)
    (pending,) = Table.open(table.location).timeline.where(action=WRITE_ACTIONS, pending=True)
    for path in (Path(table.location) / ".hoodie/.heartbeat").iterdir():
        path.unlink()
    return pending.requested
