"""After random histories the metadata table equals one that Apache Hudi builds from the data files."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from tests.support.metadata_referee import MetadataReferee

pytestmark = pytest.mark.jvm

OPTIONS = {
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
    "hoodie.clean.commits.retained": "2",
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.string()),
        ("number", pa.float64()),
        ("amount", pa.decimal128(10, 2)),
        ("text", pa.string()),
        ("born", pa.date32()),
        ("seen", pa.timestamp("us", "UTC")),
    ]
)
# Hudi has wrong bounds of NaN and of texts of several kilobytes (MDT-14), so there are none.
NUMBERS = [1.5, -3.0, 0.0, None]
TEXTS = [None, "", "é", "plain", "😀", "x" * 500]
STEPS = 14


def after_history(location: Path, kind: str, index: str, seed: int) -> History:
    """Create a table and run a random history on it."""
    table = Table.create(
        location,
        name="t",
        record_key="id",
        partition_by="day",
        table_type=kind,
        schema=SCHEMA,
        options={**OPTIONS, "hoodie.index.type": index},
    )
    history = History(table, kind, seed)
    for _ in range(STEPS):
        history.step()
    return history


class History:
    """Runs random actions on a table; each record key stays in one partition."""

    def __init__(self, table: Table, kind: str, seed: int) -> None:
        self._table, self._kind, self._rng = table, kind, random.Random(seed)
        self._partition: dict[str, str] = {}
        #: The actions that ran.
        self.actions: list[str] = []

    def step(self) -> None:
        """Run one action."""
        services = ["clean", "archive", "clustering"]
        verbs = ["upsert"] * 5 + ["insert_overwrite"]
        if self._kind == "MERGE_ON_READ":
            services.append("compaction")
        else:
            verbs.append("delete")
        action = self._rng.choice(verbs + services)
        if action in services:
            service = getattr(self._table.services, action)
            service.run() if action in ("clean", "archive") else service.run(force=True)
        elif action == "delete":
            self._table.delete(self._rows(6).select(["id", "day"]))
        else:
            getattr(self._table, action)(self._rows(20))
        self.actions.append(action)

    def write(self) -> None:
        """Upsert rows."""
        self._table.upsert(self._rows(20))

    def _rows(self, count: int) -> pa.Table:
        rng = self._rng
        ids = [f"k{number}" for number in rng.sample(range(120), count)]
        rows = [
            {
                "id": key,
                "day": self._partition.setdefault(key, rng.choice("abc")),
                "number": rng.choice(NUMBERS),
                "amount": Decimal(rng.randrange(-9999, 9999)) / 100,
                "text": rng.choice(TEXTS),
                "born": date(2026, 1, 1 + rng.randrange(20)),
                "seen": datetime(2026, 1, 1, rng.randrange(24), tzinfo=UTC),
            }
            for key in ids
        ]
        return pa.Table.from_pylist(rows, SCHEMA)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_table_equals_the_one_that_hudi_builds(
    kind: str, seed: int, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    history = after_history(tmp_path / "t", kind, "RECORD_INDEX" if seed else "SIMPLE", seed)
    found = metadata_referee.differences(str(tmp_path / "t"))
    assert not found, "\n".join([str(history.actions), *found])
