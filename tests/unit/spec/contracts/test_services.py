"""Contracts of services: each is decoded to the value that was encoded."""

from __future__ import annotations

import pytest

from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobReason
from lakehouse.spec.contracts.services import (
    ArchivedInstant,
    ArchivePlanDocument,
    BuiltFilters,
    CleanedFiles,
    CleanPlanDocument,
    ClusteredGroups,
    ClusteringPlanDocument,
    CompactedGroup,
    CompactionPlanDocument,
    ExpiredPartition,
    FilesWithoutFilter,
    OrphanFile,
    OrphanFiles,
    PlanFields,
    RecordedRequest,
    RemovedTtlRule,
    ScheduledPlan,
    ServiceCondition,
    TtlPlanDocument,
    TtlRuleDocument,
    TtlRules,
    plan_type,
)
from lakehouse.spec.table.services import SERVICES

RULE = TtlRule(id="eu", pattern="region=eu", partition_age_s=86_400, format="yyyy/MM/dd")
EXPIRED = ExpiredPartition(partition="dt=1", rule="*", reason="older than 400d", bytes=7, rows=2, files=1)
OPERATION = CompactedGroup(partition="a", file_group="f", base_file=None, log_files=2, metrics={"TOTAL_IO_MB": 0.5})
GROUP = ClusteredGroups(partition="a", file_groups=3, log_files=0, output_groups=1, read_mb=1.5, example="f")


@pytest.mark.parametrize(
    "document",
    [
        ServiceCondition(service="clean", due=True, reason="5 commits", inputs={"commits": 5, "pending": []}),
        ScheduledPlan(service="clean", instant="1", action="clean"),
        ScheduledPlan(service="clean", instant=None, code=NothingToDoReason.NOT_DUE, reason="not due"),
        CompactionPlanDocument(service="compaction", operations=(OPERATION,)),
        CompactionPlanDocument(service="logcompaction", reason="no file group has enough logs"),
        ClusteringPlanDocument(service="clustering", groups=(GROUP,)),
        CleanPlanDocument(
            service="clean",
            policy="KEEP_LATEST_COMMITS",
            earliest_retained="3",
            files=2,
            partitions=(CleanedFiles(partition="a", files=2, partition_is_deleted=True, example="f.parquet"),),
        ),
        ArchivePlanDocument(
            service="archive",
            instants=(ArchivedInstant(requested="1", completed="2", action="commit"),),
            kept="a savepoint keeps 3",
        ),
        TtlPlanDocument(service="ttl", bytes=7, untimed=1, expired=(EXPIRED,), kept=(EXPIRED,)),
        OrphanFiles(
            deleted=False,
            files=1,
            bytes=3,
            orphans=(OrphanFile(file="a/f.parquet", bytes=3, modified="2026-01-01 00:00:00", reason="no write"),),
        ),
        PlanFields(service="sizes", plan={"partitions": [{"partition": "dt=1", "bytes": 3}]}),
        FilesWithoutFilter(count=1, files=("a/f.parquet",)),
        BuiltFilters(built_files=1, instant="1"),
        BuiltFilters(built_files=0, reason="all files have one"),
        TtlRuleDocument(rule=RULE),
        RemovedTtlRule(removed="eu"),
        TtlRules(rules=(RULE, TtlRule(id="*"))),
        RecordedRequest(table="a.b", service="compaction", request=1, partitions=("dt=1",)),
    ],
)
def test_service_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document


def test_job_reasons_include_all_reasons_of_operations() -> None:
    assert {reason.value for reason in NothingToDoReason} <= {reason.value for reason in JobReason}


def test_every_service_has_a_plan_document_that_can_be_empty() -> None:
    for service in SERVICES:
        kind = plan_type(service)
        empty = kind(service=service, code=NothingToDoReason.NOT_DUE, reason="not due")
        assert kind.from_json(empty.to_json()) == empty
