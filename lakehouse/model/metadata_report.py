"""Reports about a metadata table: its content, and its differences from the files of the table (MDT-7)."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.display import Readable, Shown, count_text, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCheck(Readable):
    """The comparison of one metadata table partition with the files of the table.

    Attributes:
        partition: The partition of the metadata table.
        records: The records that it contains.
        missing: Records that the files require and that it lacks.
        surplus: Records that no file requires.
        different: Records with another content than the files.
        allows_surplus: Whether surplus records are harmless.
        examples: Some of the differences.
        error: Why the partition could not be read; empty if it was read.
    """

    partition: str
    records: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    allows_surplus: bool = False
    examples: tuple[str, ...] = ()
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether readers of the partition get right answers."""
        return not (self.error or self.missing or self.different or (self.surplus and not self.allows_surplus))

    def _shown(self) -> Shown:
        counts = {"missing": self.missing, "surplus": self.surplus, "different": self.different}
        differences = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        return Shown(
            f"{self.partition}: {count_text(self.records, 'record')}, {self.error or differences or 'equal'}", counts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReport(Readable):
    """The differences between a metadata table and the files of its table.

    `usable` is whether readers use the metadata table, and `reason` why not. `is_fault` distinguishes a damaged
    metadata table from a table that has none. `is_absent` means that the properties list a metadata table whose files
    are gone: readers list the files of the table instead, and the next write takes it out of the properties.
    """

    usable: bool
    reason: str = ""
    is_fault: bool = False
    is_absent: bool = False
    checks: tuple[MetadataCheck, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no difference. True for a table without metadata table."""
        return not self.is_fault and all(check.ok for check in self.checks)

    def _shown(self) -> Shown:
        wrong = sum(not check.ok for check in self.checks)
        line = self.reason or (
            f"{count_text(wrong, 'partition')} of the metadata table differ"
            if wrong
            else f"{count_text(len(self.checks), 'partition')} equal the files of the table"
        )
        return Shown(f"metadata table: {line}", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition(Readable):
    """One partition of a metadata table.

    Attributes:
        partition: Its name.
        state: `usable`, or `building` while an index is built.
        groups: The number of file groups.
        base_files: The number of current base files.
        log_files: The number of log files above them.
        bytes: The size of these files.
        indexes: The indexed columns, and the function of an expression.
        reason: Why readers do not use it; empty if they do.
    """

    partition: str
    state: str
    groups: int = 0
    base_files: int = 0
    log_files: int = 0
    bytes: int = 0
    indexes: str = ""
    reason: str = ""

    def _shown(self) -> Shown:
        return Shown(
            f"{self.partition}: {self.state}, {count_text(self.groups, 'file group')}, {size_text(self.bytes)}", {}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSummary(Readable):
    """The content of a metadata table. `usable` is whether readers use it, and `reason` why not.

    `compacted` is the instant of its newest compaction, None if there was none; `delta_commits` are the later delta
    commits. `pending` are the pending plans of index builds.
    """

    usable: bool
    reason: str = ""
    compacted: str | None = None
    delta_commits: int = 0
    pending: tuple[str, ...] = ()
    partitions: tuple[MetadataPartition, ...] = ()

    def _shown(self) -> Shown:
        names = ", ".join(part.partition for part in self.partitions)
        line = f"metadata table: {self.reason or names}"
        return Shown(line, {"compacted": self.compacted, "delta_commits": self.delta_commits})
