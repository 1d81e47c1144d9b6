"""Trigger conditions and plans of table services: the output of `lakehouse <service> due | plan`.

A dry run prints the plan document of the service: `plan_type` returns its type. If a service has nothing to
do, its document has the same type, no rows, and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.model.display import Condition
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.sync import SyncedPartition, SyncedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCondition(Condition, Document):
    """The trigger condition of a service:

    `lakehouse <service> due`. `inputs` are the numbers that the condition compares.
    """

    service: str
    due: bool
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPlan(Document):
    """Result of `lakehouse <service> plan`: the instant of the plan on the timeline.

    If no plan was scheduled, `instant` and `action` are None, `code` is the reason and `reason` explains it.
    """

    service: str
    instant: str | None
    action: str | None = None
    code: NothingToDoReason | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan(Document):
    """The plan of a service that was not scheduled.

    `code` and `reason` explain why there is nothing to do. If there is a plan, they are None and empty.
    """

    service: str
    code: NothingToDoReason | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedGroup:
    """A file group to compact. `base_file` is None if it has log files only; `metrics` are the plan's metrics."""

    partition: str
    file_group: str
    base_file: str | None
    log_files: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlanDocument(ServicePlan):
    """A plan of compaction or log compaction."""

    operations: tuple[CompactedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredGroups:
    """File groups in one partition that clustering replaces by `output_groups` new ones.

    `example` is the id of the first group.
    """

    partition: str
    file_groups: int
    log_files: int
    output_groups: int
    read_mb: float
    sort_columns: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPlanDocument(ServicePlan):
    """A plan of clustering."""

    groups: tuple[ClusteredGroups, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFiles:
    """The files that a clean deletes in one partition. `example` is the name of one file.

    `partition_is_deleted` means that the partition has no other files.
    """

    partition: str
    files: int
    partition_is_deleted: bool = False
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlanDocument(ServicePlan):
    """A plan of clean.

    `earliest_retained` is the earliest write whose version stays readable; None if there is no such limit.

    `files` is the number of files to delete in all partitions.
    """

    policy: str = ""
    earliest_retained: str | None = None
    files: int = 0
    partitions: tuple[CleanedFiles, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedInstant:
    """A completed action to archive."""

    requested: str
    completed: str | None
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlanDocument(ServicePlan):
    """A plan of archive, sorted by requested time. `kept` explains why the next action stays on the active timeline."""

    instants: tuple[ArchivedInstant, ...] = ()
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredPartition:
    """An expired partition, its TTL rule, and the reason. The numbers describe its newest file slices."""

    partition: str
    rule: str
    reason: str
    bytes: int = 0
    rows: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPlanDocument(ServicePlan):
    """A plan of ttl: the partitions to delete, their size, and the expired ones that are kept.

    `untimed` is the number of partitions that are kept because their rule needs a time and their values contain none.
    """

    bytes: int = 0
    untimed: int = 0
    expired: tuple[ExpiredPartition, ...] = ()
    kept: tuple[ExpiredPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedIndex:
    """An index to build: its partition of the metadata table, and the newest write that precedes all pending writes."""

    partition: str
    up_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlanDocument(ServicePlan):
    """A plan of index: the indexes in the order in which they are built."""

    indexes: tuple[PlannedIndex, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFile:
    """A data file that is not part of any write. `modified` is in UTC."""

    file: str
    bytes: int
    modified: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansPlanDocument(ServicePlan):
    """The orphan files that a run deletes."""

    orphans: tuple[OrphanFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlanDocument(ServicePlan):
    """Scope of a validation: the listing, the footers of a file sample, the metadata table; with `deep` all rows."""

    file_groups: int = 0
    footers: int = 0
    metadata_table: bool = False
    deep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlanDocument(ServicePlan):
    """A sync plan: the changes to each metastore table and to its partitions.

    `metastore` contains the addresses. `skipped` contains partitions that Hive cannot represent, each with the reason.
    """

    metastore: str = ""
    tables: tuple[SyncedTable, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[SyncedPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFields(ServicePlan):
    """The plan of a service without its own document type: the fields of the plan by name."""

    plan: Mapping[str, Any] = field(default_factory=dict)


#: Document type by service; the other services use `PlanFields`.
PLAN_DOCUMENTS: Mapping[str, type[ServicePlan]] = {
    "compaction": CompactionPlanDocument,
    "logcompaction": CompactionPlanDocument,
    "clustering": ClusteringPlanDocument,
    "index": IndexPlanDocument,
    "clean": CleanPlanDocument,
    "archive": ArchivePlanDocument,
    "ttl": TtlPlanDocument,
    "orphans": OrphansPlanDocument,
    "validation": ValidationPlanDocument,
    "sync": SyncPlanDocument,
}


def plan_type(service: str) -> type[ServicePlan]:
    """Return the type of the document that a dry run of a service prints."""
    return PLAN_DOCUMENTS.get(service, PlanFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFiles(Document):
    """Result of `lakehouse clean orphans`. `deleted` is whether they were deleted; `bytes` is their size."""

    deleted: bool
    files: int = 0
    bytes: int = 0
    orphans: tuple[OrphanFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedIndex(Document):
    """Result of `lakehouse index create`.

    `instant` is the instant of the build; None if the index service will build it later.

    `partition` is the partition of the metadata table. `reason` explains why nothing was built.
    """

    partition: str
    kind: str
    column: str
    function: str = ""
    instant: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedIndexDocument(Document):
    """Result of `lakehouse index drop`: the dropped partitions of the metadata table, and plans that were removed."""

    partitions: tuple[str, ...]
    plans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesWithoutFilter(Document):
    """Result of `lakehouse index filters check`: the paths of the newest base files that have no bloom filter."""

    count: int = 0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFilters(Document):
    """Result of `lakehouse index filters build`: the number of files with a new bloom filter, and the commit.

    `instant` is None without a commit, and `reason` explains why.
    """

    built_files: int
    instant: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRuleDocument(Document):
    """Result of `lakehouse ttl policy set`."""

    rule: TtlRule


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedTtlRule(Document):
    """Result of `lakehouse ttl policy remove`: the name of the rule."""

    removed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRules(Document):
    """Result of `lakehouse ttl policy list`, in the order in which the rules were set."""

    rules: tuple[TtlRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest(Document):
    """Result of `lakehouse services request`. `request` is the number of the request in the catalog.

    `partitions` limits the run to these partitions; empty means all.
    """

    table: str
    service: str
    request: int
    partitions: tuple[str, ...] = ()
