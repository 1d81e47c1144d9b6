"""The invariants of a table, with the severity and the repair of each violation, and the report of a validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakehouse.model.display import Readable, Shown, count_text, sentence


class Severity(StrEnum):
    """CORRUPT: rows are lost, wrong or unreadable. WARNING: no reader is affected."""

    CORRUPT = "corrupt"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A property of a valid table, the severity of a violation, and the way to repair it."""

    holds: str
    way_out: str
    severity: Severity = Severity.CORRUPT


_BACKUP = "copy the file back from a backup, or restore to a commit or savepoint before it (`lakehouse restore run`)"
_REWRITE = "overwrite the partition from its source, or restore to a commit or savepoint before the file's"
_FOOTER = "a clustering rewrites the file group with its footer (`lakehouse clustering run`)"

#: All invariants that are checked, by name.
INVARIANTS: Mapping[str, Invariant] = {
    "properties.checksum": Invariant(
        holds="hoodie.properties has the checksum of its database and table name",
        way_out="the file was edited or truncated: compare it with a backup, then correct hoodie.table.checksum",
    ),
    "properties.present": Invariant(
        holds="hoodie.properties exists, not only its backup",
        way_out="an update was interrupted; the backup is valid, so copy it to hoodie.properties",
        severity=Severity.WARNING,
    ),
    "timeline.unique": Invariant(
        holds="no two actions have the same time, and each completed once",
        way_out="find the writer of both; roll back the action whose files no reader needs",
    ),
    "timeline.completions": Invariant(
        holds="no two actions of a table that was upgraded have the same completion time",
        way_out="Hudi took the times from the modification times of files; nothing has to be done, as readers order "
        "such actions by their requested times",
        severity=Severity.WARNING,
    ),
    "timeline.order": Invariant(
        holds="actions complete after they were requested",
        way_out="its writer's clock was set back; incremental reads may miss it: write its rows again",
    ),
    "timeline.requested": Invariant(
        holds="an inflight or completed action has its requested file",
        way_out="copy the file back from a backup; an empty file is enough for a commit, not for a plan",
    ),
    "timeline.archived": Invariant(
        holds="archived instants are not on the active timeline",
        way_out="an archive run was interrupted; the next one completes it (`lakehouse archive run`)",
        severity=Severity.WARNING,
    ),
    "timeline.readable": Invariant(
        holds="the files of the timeline can be parsed",
        way_out="copy the file back from a backup, or restore to a commit before it",
    ),
    "timeline.dead": Invariant(
        holds="pending writes have an active writer",
        way_out="if its writer has ended, the next write rolls it back, or `lakehouse rollback failed` does so; "
        "writers of Hudi may be active without a heartbeat",
        severity=Severity.WARNING,
    ),
    "archive.readable": Invariant(
        holds="the archived timeline is complete and readable",
        way_out="copy the file back from a backup; reads of old times and archiving fail until then",
    ),
    "plan.files": Invariant(
        holds="the files of a pending plan exist",
        way_out="roll the plan back (`lakehouse rollback run`), then plan again",
    ),
    "savepoint.files": Invariant(
        holds="the files of a savepoint exist",
        way_out="copy them back from a backup, or delete the savepoint, as no restore can use it",
    ),
    "file.present": Invariant(holds="the files that commits name exist, unless a clean deleted them", way_out=_BACKUP),
    "file.size": Invariant(holds="files have the size that their commit states", way_out=_BACKUP),
    "file.kind": Invariant(
        holds="a copy-on-write table has no log files", way_out="remove the file, or correct hoodie.table.type"
    ),
    "file.orphan": Invariant(
        holds="every data file is named by an instant",
        way_out="no reader sees it, and the archive stops before it; `lakehouse clean orphans --delete` removes it "
        "once it is old enough",
        severity=Severity.WARNING,
    ),
    "file.unnamed": Invariant(
        holds="readers of a listing show only files that an instant names",
        way_out="readers without the metadata table show its rows, which may be duplicates: `lakehouse clean orphans "
        "--delete` removes it once it is old enough, if that command lists it; otherwise delete it with a tool of the "
        "storage",
    ),
    "leftover": Invariant(
        holds="completed and failed writes left no markers, staged rows, heartbeats or unfinished files",
        way_out="the next write deletes them",
        severity=Severity.WARNING,
    ),
    "partition.metadata": Invariant(
        holds="every partition has a readable partition metadata file",
        way_out="Hudi does not find the partition: the next write of a new file to it creates the file again",
    ),
    "schema.readable": Invariant(
        holds="the newest commit's schema parses", way_out="restore to a commit before it, or write with a good schema"
    ),
    "bucket.layout": Invariant(
        holds="file groups are buckets of their partition: by number, or by a range of its hashing metadata, and a "
        "bucket has one file group",
        way_out="a writer without the bucket index, or with another number of buckets, wrote to the partition, or "
        "hashing metadata was lost: overwrite the partition from its rows with the table's index",
    ),
    "bucket.rows": Invariant(
        holds="rows are in the bucket of the hash of their key",
        way_out="upserts do not find such rows: overwrite the partition from its rows with the bucket index",
    ),
    "file.readable": Invariant(holds="base files are complete parquet files", way_out=_BACKUP),
    "file.schema": Invariant(
        holds="base files can be read with the table's schema",
        way_out="a writer changed a type in a way that is not allowed: overwrite the partition",
    ),
    "file.rows": Invariant(holds="base files have as many rows as their commit states", way_out=_REWRITE),
    "file.keys": Invariant(holds="every row has a record key", way_out=_REWRITE),
    "file.key_values": Invariant(
        holds="stored record keys and partition paths are those of the columns of the row",
        way_out="a key or partition column changed its type, or another key generator wrote the rows: upserts do not "
        "find such rows; read them, delete them by their stored key, and upsert them",
        severity=Severity.WARNING,
    ),
    "file.meta_columns": Invariant(
        holds="_hoodie_partition_path and _hoodie_file_name of rows are those of their base file",
        way_out=f"the file was moved or copied by hand; {_FOOTER}",
    ),
    "file.key_range": Invariant(
        holds="footers have the smallest and the largest record key",
        way_out=f"writers that use the range do not find its rows; {_FOOTER}",
    ),
    "file.bloom": Invariant(
        holds="the bloom filters of footers contain all keys",
        way_out=f"writers that use the filter do not find its rows; {_FOOTER}",
    ),
    "file.bloom_absent": Invariant(
        holds="footers of base files have a bloom filter",
        way_out="they were written with hoodie.parquet.bloom.filter.enabled=false, or by a writer without filters: "
        "Hudi's bloom index opens them at every lookup; `lakehouse index filters build` adds one, if filters are "
        "enabled",
        severity=Severity.WARNING,
    ),
    "file.column_ranges": Invariant(
        holds="the column ranges in commits contain the values of their files",
        way_out=f"queries with conditions miss rows of the file; {_FOOTER}",
    ),
    "metadata.bounds": Invariant(
        holds="the column bounds in the metadata table contain the values of their files and partitions",
        way_out="queries with conditions miss rows: build the metadata table again (`lakehouse metadata rebuild`)",
    ),
    "log.readable": Invariant(holds="all blocks of log files are complete", way_out=_BACKUP),
    "log.instant": Invariant(holds="the blocks of a log file have the instant in its name", way_out=_BACKUP),
    "key.unique": Invariant(
        holds="a key has one row in its partition; with a global index, one row in the table",
        way_out="insert and bulk_insert may add a key again, upserts never do: delete the key, then upsert its row; "
        "where deletes are refused (buckets of merge-on-read tables), replace the partition by insert_overwrite",
        severity=Severity.WARNING,
    ),
    "key.global": Invariant(
        holds="a key is in one partition (checked with keys=global)",
        way_out="a key is unique in its partition unless the index is global: delete its rows from the partitions "
        "where they are outdated, and write with hoodie.index.type=GLOBAL_SIMPLE, or add the partition column to "
        "the record key",
        severity=Severity.WARNING,
    ),
    "unchecked": Invariant(
        holds="everything can be checked",
        way_out="repair what is named above, or use a reader that supports it, then validate again",
        severity=Severity.WARNING,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A violation: the name of the invariant, the problem, and the path relative to the table."""

    invariant: str
    problem: str
    path: str = ""
    instant: str = ""

    def __post_init__(self) -> None:
        assert self.invariant in INVARIANTS, f"{self.invariant} has to be declared"

    @property
    def severity(self) -> Severity:
        """The severity of the violation."""
        return INVARIANTS[self.invariant].severity

    @property
    def way_out(self) -> str:
        """The way to repair it."""
        return INVARIANTS[self.invariant].way_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport(Readable):
    """The result of a validation, findings by descending severity.

    `rows` is the number of rows that were read, with deletes in logs; 0 unless `deep`.
    """

    location: str
    deep: bool
    findings: tuple[Finding, ...]
    instants: int
    files: int
    file_groups: int
    rows: int = 0

    def _shown(self) -> Shown:
        findings = {"corrupt": len(self.corrupt), "warning": len(self.warnings)}
        groups = [count_text(count, f"{name} finding") for name, count in findings.items() if count]
        line = sentence(*groups or ["no finding"], count_text(self.files, "file"), count_text(self.instants, "instant"))
        rows = [{"severity": f.severity, "invariant": f.invariant, "problem": f.problem} for f in self.findings]
        return Shown(f"{'deep ' if self.deep else ''}validation of {self.location}: {line}", {}, rows)

    @property
    def corrupt(self) -> tuple[Finding, ...]:
        """The findings that need a repair."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.CORRUPT)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that affect no reader."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)


class KeyScope(StrEnum):
    """The scope in which a validation searches for duplicate keys.

    PARTITION: each partition, or the table if its index is global; part of a deep validation. GLOBAL: the whole table
    as well, with every index; the key columns of all newest slices are read.
    """

    PARTITION = "partition"
    GLOBAL = "global"


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, corrupt ones first, otherwise in the given order."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.severity is not Severity.CORRUPT))
