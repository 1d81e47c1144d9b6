"""Results of `lakehouse metadata show | validate | rebuild`."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.metadata_report import MetadataCheck, MetadataPartition, MetadataReport, MetadataSummary
from lakehouse.spec.contracts.document import Document, mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartitionInfo:
    """One partition of the metadata table. `reason` explains why readers do not use it; it is empty if they do."""

    partition: str
    state: str
    groups: int = 0
    base_files: int = 0
    log_files: int = 0
    bytes: int = 0
    indexes: str = ""
    reason: str = ""

    @classmethod
    def of(cls, part: MetadataPartition) -> MetadataPartitionInfo:
        """Convert a partition to its contract."""
        return mirror(cls, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDescription(Document):
    """Result of `lakehouse metadata show`: whether readers use the metadata table, why not, and its partitions.

    `compacted` is the instant of the newest compaction, `delta_commits` the number of commits since then. `pending` are
    the pending plans of index builds.
    """

    usable: bool
    reason: str = ""
    compacted: str | None = None
    delta_commits: int = 0
    pending: tuple[str, ...] = ()
    partitions: tuple[MetadataPartitionInfo, ...] = ()

    @classmethod
    def of(cls, summary: MetadataSummary) -> MetadataDescription:
        """Convert the description of a metadata table to its contract."""
        return mirror(cls, summary, partitions=tuple(map(MetadataPartitionInfo.of, summary.partitions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCheckInfo:
    """The comparison of one metadata partition with the files of the table.

    `error` explains why the partition could not be read. Surplus entries in a secondary index do not count as a
    difference.
    """

    partition: str
    ok: bool
    records: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    examples: tuple[str, ...] = ()
    error: str = ""

    @classmethod
    def of(cls, check: MetadataCheck) -> MetadataCheckInfo:
        """Convert a comparison to its contract."""
        return mirror(cls, check)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataValidation(Document):
    """Result of `lakehouse metadata validate`. `reason` explains why readers do not use the metadata table."""

    ok: bool
    usable: bool
    reason: str = ""
    checks: tuple[MetadataCheckInfo, ...] = ()

    @classmethod
    def of(cls, report: MetadataReport) -> MetadataValidation:
        """Convert the report of a validation to its contract."""
        return mirror(cls, report, checks=tuple(map(MetadataCheckInfo.of, report.checks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRebuild(Document):
    """Result of `lakehouse metadata rebuild`: the partitions that were built, and the files that are listed.

    `dropped` are earlier partitions that were not built again. `left_out` are files that belong to no write, so the
    metadata table does not list them. `undecided` is the number of listed files that are older than the archived
    timeline, so it is unknown whether they belong to a write.
    """

    partitions: tuple[str, ...]
    files: int
    dropped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    undecided: int = 0
