"""Converts service plans to contracts and prints them, with one function per type of plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import singledispatch
from typing import Any

from lakehouse.cli.output import rows_of, show, show_document
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.planning.orphans import Orphan, OrphanPlan
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.indexing import IndexPlan
from lakehouse.model.ttl import Expiry, TtlPlan
from lakehouse.model.upkeep import ValidationPlan
from lakehouse.platform.publish.sync import report_of
from lakehouse.platform.publish.sync_plan import SyncPlan, TablePlan
from lakehouse.spec.contracts.document import encode, mirror
from lakehouse.spec.contracts.services import (
    ArchivedInstant,
    ArchivePlanDocument,
    CleanedFiles,
    CleanPlanDocument,
    ClusteredGroups,
    ClusteringPlanDocument,
    CompactedGroup,
    CompactionPlanDocument,
    ExpiredPartition,
    IndexPlanDocument,
    OrphanFile,
    OrphansPlanDocument,
    PlanFields,
    PlannedIndex,
    ServicePlan,
    SyncPlanDocument,
    TtlPlanDocument,
    ValidationPlanDocument,
    plan_type,
)
from lakehouse.spec.contracts.sync import PartitionChange, SyncedPartition
from lakehouse.spec.options.clustering import SORT_COLUMNS

_ROOT = "(root)"


@singledispatch
def plan_document(plan: Any, service: str) -> ServicePlan:
    """Convert the plan of a service to its contract. A plan type without its own view is shown as its fields."""
    return PlanFields(service=service, plan=encode(plan))


def show_plan(document: ServicePlan, output: str) -> None:
    """Print the contract of a plan. For people, a plan that rewrites file groups is a table of file groups."""
    if isinstance(document, CompactionPlanDocument) and document.operations:
        show_document(document, output, [_with_metrics(row) for row in rows_of(document.operations)])
    elif isinstance(document, ClusteringPlanDocument) and document.groups:
        show_document(document, output, rows_of(document.groups))
    elif isinstance(document, PlanFields) and document.plan and output != "json":
        show({"service": document.service, **document.plan}, output)
    else:
        show_document(document, output)


@plan_document.register
def _(plan: NothingToDo, service: str) -> ServicePlan:
    return plan_type(service)(service=service, code=plan.code, reason=plan.reason)


@plan_document.register
def _(plan: CompactionPlan, service: str) -> ServicePlan:
    operations = tuple(
        CompactedGroup(
            partition=operation.partition or _ROOT,
            file_group=operation.file_id,
            base_file=operation.data_file,
            log_files=len(operation.log_files),
            metrics={name: round(value, 3) for name, value in operation.metrics.items()},
        )
        for operation in plan.operations
    )
    return CompactionPlanDocument(service=service, operations=operations)


@plan_document.register
def _(plan: ClusteringPlan, service: str) -> ServicePlan:
    groups = tuple(
        ClusteredGroups(
            partition=group.partition or _ROOT,
            file_groups=len(group.slices),
            log_files=sum(len(file_slice.log_files) for file_slice in group.slices),
            output_groups=group.outputs,
            read_mb=group.metrics["TOTAL_IO_READ_MB"],
            sort_columns=plan.params.get(SORT_COLUMNS, ""),
            example=group.slices[0].file_id,
        )
        for group in plan.groups
    )
    return ClusteringPlanDocument(service=service, groups=groups)


@plan_document.register
def _(plan: CleanPlan, service: str) -> ServicePlan:
    partitions = tuple(
        CleanedFiles(
            partition=partition or _ROOT,
            files=len(paths),
            partition_is_deleted=partition in plan.partitions_to_delete,
            example=paths[-1].rpartition("/")[2],
        )
        for partition, paths in plan.files.items()
    )
    return CleanPlanDocument(
        service=service,
        policy=plan.policy,
        earliest_retained=None if plan.earliest is None else plan.earliest.requested,
        files=len(plan.paths),
        partitions=partitions,
    )


@plan_document.register
def _(plan: IndexPlan, service: str) -> ServicePlan:
    indexes = tuple(PlannedIndex(partition=info.partition, up_to=info.up_to) for info in plan.partitions)
    return IndexPlanDocument(service=service, indexes=indexes)


@plan_document.register
def _(plan: ArchivePlan, service: str) -> ServicePlan:
    instants = tuple(
        ArchivedInstant(requested=instant.requested, completed=instant.completed, action=str(instant.action))
        for instant in plan.instants
    )
    return ArchivePlanDocument(service=service, instants=instants, kept=plan.kept)


@plan_document.register
def _(plan: TtlPlan, service: str) -> ServicePlan:
    return TtlPlanDocument(
        service=service,
        bytes=sum(expiry.size_bytes for expiry in plan.expired),
        untimed=plan.untimed,
        expired=tuple(map(expired_view, plan.expired)),
        kept=tuple(map(expired_view, plan.kept)),
    )


@plan_document.register
def _(plan: OrphanPlan, service: str) -> ServicePlan:
    return OrphansPlanDocument(service=service, orphans=tuple(map(orphan_view, plan.orphans)))


@plan_document.register
def _(plan: ValidationPlan, service: str) -> ServicePlan:
    return mirror(ValidationPlanDocument, plan, service=service, code=None, reason="")


@plan_document.register
def _(plan: SyncPlan, service: str) -> ServicePlan:
    return SyncPlanDocument(
        service=service,
        metastore=plan.metastore,
        tables=report_of(plan).tables,
        skipped=plan.skipped,
        partitions=tuple(row for table_plan in plan.tables for row in _synced_partitions(table_plan)),
    )


def orphan_view(orphan: Orphan) -> OrphanFile:
    """Convert an orphan file to its contract."""
    return OrphanFile(
        file=orphan.path,
        bytes=orphan.size_bytes,
        modified=f"{datetime.fromtimestamp(orphan.modified_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
        reason=orphan.reason,
    )


def expired_view(expiry: Expiry) -> ExpiredPartition:
    """Convert an expired partition to its contract."""
    return mirror(ExpiredPartition, expiry, bytes=expiry.size_bytes)


def _synced_partitions(plan: TablePlan) -> list[SyncedPartition]:
    table = f"{plan.wanted.database}.{plan.wanted.name}"
    added = [(PartitionChange.ADD, "/".join(partition.values), partition.location) for partition in plan.add]
    moved = [(PartitionChange.ALTER, "/".join(partition.values), partition.location) for partition in plan.alter]
    dropped = [(PartitionChange.DROP, name, None) for name in plan.drop]
    return [
        SyncedPartition(table=table, change=change, partition=name, location=location)
        for change, name, location in (*added, *moved, *dropped)
    ]


def _with_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table row with one column per metric."""
    return {**{name: value for name, value in row.items() if name != "metrics"}, **row["metrics"]}
