"""Events that a source has several times are stored once: within a batch, and beside the rows of the table."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.deduplicate import DUPLICATES
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spark.duplicates import RepeatedRows
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.ingest import DeduplicateSpec
from lakehouse.spec.table.table_spec import PartitionField, TableSpec
from tests.support.file_ingest import changed_ingest, file_ingest

START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 20)), max_size=30)


@given(EVENTS, st.integers(0, 6), st.integers(1, 7))
def test_rows_are_kept_as_one_by_one_whatever_the_batches(
    events: list[tuple[int, int | None]], within: int, size: int
) -> None:
    ordered = sorted(events, key=lambda one: (one[0], -1 if one[1] is None else one[1]))
    expected, last = [], dict[int, int]()
    for key, time in ordered:
        keeps = time is None or key not in last or time > last[key] + within
        expected.append(keeps)
        if keeps and time is not None:
            last[key] = time
    keeper, found = RepeatedRows(within), []
    for start in range(0, len(ordered), size):
        part = ordered[start : start + size]
        keys, times = pa.array([one[0] for one in part]), pa.array([one[1] for one in part], pa.int64())
        found += keeper.kept([keys], times).to_pylist()
    assert found == expected


@pytest.mark.spark
def test_repeated_events_are_dropped_and_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    spec = TableSpec(
        table="clicks",
        location=str(tmp_path / "table"),
        record_key=("event",),
        partition_by=(PartitionField(name="day"),),
        schema={"event": "string", "device": "string", "at": "timestamp", "day": "string"},
        ingest=file_ingest(
            path=f"{tmp_path}/landing/",
            operation="insert",
            deduplicate=DeduplicateSpec(within_s=3600, keys=("device",), time="at"),
        ),
    )
    (tmp_path / "landing").mkdir()

    def run(name: str, *events: tuple[str, str | None, float]) -> IngestReport:
        lines = []
        for event, device, hours in events:
            at = START + timedelta(hours=hours)
            lines.append(json.dumps({"event": event, "device": device, "at": at.isoformat(), "day": str(at.date())}))
        (tmp_path / f"landing/{name}.json").write_text("\n".join(lines))
        return run_ingest(spark, spec, IngestCommand(table="clicks"), environ={})

    def events() -> list[str]:
        return sorted(Table.open(spec.location).scan(columns=["event"]).to_arrow().column("event").to_pylist())

    # Half an hour is in the window, and the window is that of the row that is kept: 1.5 hours are outside of it.
    first = run(
        "1", ("a1", "a", 0), ("a2", "a", 0.5), ("a3", "a", 1.5), ("b1", "b", 0), ("n1", None, 0), ("n2", None, 0)
    )
    assert (first.rows, first.duplicates_dropped) == (5, 1)
    assert events() == ["a1", "a3", "b1", "n1", "n2"]
    # Rows of the table count before and after a row, also over the border of partitions; b is an hour and a bit away.
    second = run("2", ("a4", "a", 2), ("a5", "a", -0.75), ("b2", "b", 1.01), ("c1", "c", 30))
    assert (second.rows, second.duplicates_dropped) == (2, 2)
    assert events() == ["a1", "a3", "b1", "b2", "c1", "n1", "n2"]
    third = run("3", ("c2", "c", 30.5))
    assert (third.rows, third.duplicates_dropped, third.instant is not None) == (0, 1, True)
    assert Table.open(spec.location).last_commit_extra(DUPLICATES) == "1"
    again = run_ingest(spark, spec, IngestCommand(table="clicks"), environ={})
    assert again.status is JobStatus.NOTHING_TO_DO, "the checkpoint has the file of duplicates"
    wrong: Any = changed_ingest(spec.ingest, deduplicate=DeduplicateSpec(within_s=1, keys=("devise",), time="at"))
    spec = TableSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, "ingest": wrong})
    with pytest.raises(UserError, match=r"deduplicate: column 'devise' is not among .* Did you mean 'device'\?"):
        run("4", ("d", "d", 0))
