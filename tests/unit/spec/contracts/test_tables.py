"""Contracts of one table: each is decoded to the value that was encoded."""

from __future__ import annotations

import pytest

from lakehouse.model.validation import INVARIANTS, Finding, ValidationReport
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.tables import (
    ColumnInfo,
    CommitInfo,
    DeletedRows,
    KeptCommit,
    PartitionInfo,
    PendingPlan,
    TableSummary,
    TableValidation,
)

SUMMARY = TableSummary(
    table="a.b",
    location="lake/b",
    type="MERGE_ON_READ, version 9, EVENT_TIME_ORDERING",
    record_key=("id",),
    partitioned_by=("p",),
    ordering=("ts",),
    schema=(ColumnInfo(column="id", type="string"),),
    partitions=(PartitionInfo(partition="a", base_bytes=7, log_ratio=0.5), PartitionInfo(partition="b")),
    pending_plans=(PendingPlan(instant="2", action="compaction", state="requested", file_groups=1),),
    pending_restore="3",
    savepoints=(KeptCommit(instant="1", files=2, by="ada"),),
    commits=(
        CommitInfo(instant="1", completed="2", operation="UPSERT", files=1, inserts=2, updates=3, deletes=4, bytes=5),
    ),
)
REPORT = ValidationReport(
    location="lake/b",
    deep=True,
    findings=(
        Finding(invariant="file.present", problem="the file is missing", path="a/f.parquet", instant="1"),
        Finding(invariant="unchecked", problem="a log is encrypted"),
    ),
    instants=3,
    files=4,
    file_groups=2,
    rows=10,
)


@pytest.mark.parametrize(
    "document",
    [
        SUMMARY,
        DeletedRows(dry_run=True, rows=3),
        DeletedRows(dry_run=False, rows=3, instant="1"),
        DeletedRows(dry_run=False, rows=0, reason="no row matches"),
        TableValidation.of(REPORT),
    ],
)
def test_table_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document


def test_validation_has_counts_by_severity_and_repairs() -> None:
    validation = TableValidation.of(REPORT)
    assert (validation.corrupt, validation.warnings, validation.rows) == (1, 1, 10)
    assert [finding.repair for finding in validation.findings] == [
        INVARIANTS["file.present"].way_out,
        INVARIANTS["unchecked"].way_out,
    ]
