"""Test reads and a compaction of a version 6 table with deletes as Java objects, the format before Hudi 0.14."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.table.table import Table
from tests.support.fixture_tables import canonical_rows, load_fixture_tables
from tests.support.java_deletes import HOLDING, LATE, TRIPS, trips_with_deletes

(FIXTURE,) = (table for table in load_fixture_tables() if table.name == TRIPS)


@pytest.mark.parametrize("event", [False, True], ids=["commit time", "event time"])
def test_records_deleted_by_java_objects_are_not_read(event: bool, tmp_path: Path) -> None:
    """SerializationUtils.serialize of Hudi 0.10.1 (version 1) and 0.12.3 (version 2) wrote the bytes of the deletes."""
    before = FIXTURE.expected()
    assert before is not None and {*HOLDING, LATE} <= set(before.column("uuid").to_pylist())
    gone = HOLDING if event else (*HOLDING, LATE)
    expected = before.filter(pc.invert(pc.is_in(before.column("uuid"), value_set=pa.array(gone))))
    table = Table.open(str(trips_with_deletes(FIXTURE, tmp_path, event=event)))
    assert canonical_rows(table.scan().to_arrow()) == canonical_rows(expected)
    assert table.scan().count() == 8 - len(gone)
    assert canonical_rows(table.scan(read_optimized=True).to_arrow()) == canonical_rows(FIXTURE.expected("ro"))


def test_deletes_of_the_last_commit_do_not_apply_to_earlier_instants(tmp_path: Path) -> None:
    table = Table.open(str(trips_with_deletes(FIXTURE, tmp_path, event=True)))
    first = table.commits()[0][0]
    assert table.scan(as_of=first.requested).count() == 8
