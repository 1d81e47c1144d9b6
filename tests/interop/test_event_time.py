"""Event times in commits: lakehouse selects versions by the event times that Apache Hudi records, and the reverse."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from tests.support.hudi import Hudi
from tests.support.tables import SCHEMA, batch, row

pytestmark = pytest.mark.jvm

TRACKED = {"hoodie.payload.event.time.field": "ts"}
HUDI_OPTIONS = {
    "hoodie.table.name": "theirs",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.metadata.enable": "false",
    "hoodie.write.track.event.time.watermark": "true",
    # If Hudi rewrites a file, it records the event times of all rows in it.
    "hoodie.parquet.small.file.limit": "0",
    **TRACKED,
}
MARCH = 1_740_787_200_000
HOUR = 3_600_000


def event_times(table: Table) -> list[tuple[int, int] | None]:
    """Return the lowest and highest event time of each commit, in timeline order."""
    found: list[tuple[int, int] | None] = []
    for _, metadata in table.commits():
        ranges = [stat.event_time for stat in metadata.stats if stat.event_time]
        found.append((min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None)
    return found


@pytest.mark.parametrize("unit", [1, 1000], ids=["milliseconds", "seconds"])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_and_lakehouse_record_the_same_event_times(kind: str, unit: int, hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), {**HUDI_OPTIONS, "hoodie.datasource.write.table.type": kind}

    def rows(*events: tuple[str, int]) -> pa.Table:
        return batch([row(name, ts=(MARCH + hours * HOUR) // unit) for name, hours in events], SCHEMA)

    hudi.write(location, rows(("a", -4), ("b", -2)), options, mode="overwrite")
    hudi.write(location, rows(("c", 1)), options)
    table = Table.open(location, options=TRACKED)
    assert event_times(table) == [(MARCH - 4 * HOUR, MARCH - 2 * HOUR), (MARCH + HOUR, MARCH + HOUR)]
    first = table.version_at("2025-03-01")
    assert first.instant == table.commits()[0][0]
    assert first.is_clean
    ours = table.upsert(rows(("d", 2), ("e", 3)))
    assert isinstance(ours, Committed)
    assert event_times(table)[-1] == (MARCH + 2 * HOUR, MARCH + 3 * HOUR)
    hudi.write(location, rows(("late", -1)), options)
    assert event_times(table)[-1] == (MARCH - HOUR, MARCH - HOUR)
    assert table.version_at("2025-03-01").instant == table.commits()[-1][0]
    assert table.scan(as_of_event_time="2025-03-01").count() == 6
    assert hudi.read(location).num_rows == 6
    assert table.watermark().value is not None


def test_version_is_not_clean_after_hudi_rewrote_a_file(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    evening = [row("a", ts=MARCH - 4 * HOUR), row("b", ts=MARCH - 2 * HOUR)]
    hudi.write(location, batch(evening), HUDI_OPTIONS, mode="overwrite")
    hudi.write(location, batch([row("b", ts=MARCH + HOUR)]), HUDI_OPTIONS)
    table = Table.open(location, options=TRACKED)
    assert event_times(table)[1] == (MARCH - 4 * HOUR, MARCH + HOUR), (
        "the range includes a, which the commit only copied"
    )
    found = table.version_at("2025-03-01")
    assert (found.instant, found.is_clean) == (table.commits()[1][0], False)
