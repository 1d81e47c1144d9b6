"""What can be wrong with a table: every invariant by its name, what breaks it, and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad it is: rows are lost, wrong or unreadable, or something is left behind that harms no reader."""

    CORRUPT = "corrupt"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """What holds of a table in order, how bad it is if it does not, and the way out."""

    holds: str
    way_out: str
    severity: Severity = Severity.CORRUPT


_BACKUP = "bring the file back from a backup, or restore to a commit or savepoint before it (`lakehouse restore run`)"
_REWRITE = "overwrite the partition from its source, or restore to a commit or savepoint before the file's"
_FOOTER = "a clustering writes the file group anew, footer included (`lakehouse clustering run`)"

#: Every invariant that is checked, by name.
INVARIANTS: Mapping[str, Invariant] = {
    "properties.checksum": Invariant(
        holds="hoodie.properties bears the checksum of its database and table name",
        way_out="somebody edited or cut the file: compare it with a backup, then correct hoodie.table.checksum",
    ),
    "properties.present": Invariant(
        holds="hoodie.properties is there, and not its backup alone",
        way_out="an update of the properties died; the backup counts, so copy it to hoodie.properties",
        severity=Severity.WARNING,
    ),
    "timeline.unique": Invariant(
        holds="a time is that of one action, which completed once",
        way_out="find out which writer made both; roll the one back whose files no reader needs",
    ),
    "timeline.order": Invariant(
        holds="actions complete after they were requested",
        way_out="the clock of its writer went back; readers of changes may miss it: write its rows again",
    ),
    "timeline.requested": Invariant(
        holds="an action that began or completed has its requested file",
        way_out="bring the file back from a backup; an empty one does for a commit, not for an action with a plan",
    ),
    "timeline.archived": Invariant(
        holds="what is archived is not on the timeline any more",
        way_out="an archiver died; the next one ends its work (`lakehouse archive run`)",
        severity=Severity.WARNING,
    ),
    "timeline.readable": Invariant(
        holds="the files of the timeline say what was done or planned",
        way_out="bring the file back from a backup, or restore to a commit before it",
    ),
    "timeline.dead": Invariant(
        holds="pending writes have a living writer",
        way_out="if its writer is gone, the next write undoes it, or `lakehouse rollback failed` does at once; writers "
        "of Hudi may live without a sign of it",
        severity=Severity.WARNING,
    ),
    "archive.readable": Invariant(
        holds="the archived timeline is whole",
        way_out="bring the file back from a backup; reads of old times and archiving stop until then",
    ),
    "plan.files": Invariant(
        holds="the files of a pending plan are there",
        way_out="roll the plan back (`lakehouse rollback run`), then plan again",
    ),
    "savepoint.files": Invariant(
        holds="the files that a savepoint keeps are there",
        way_out="bring them back from a backup, or delete the savepoint: nothing can be restored to it",
    ),
    "file.present": Invariant(holds="the files that commits name are there, unless a clean took them", way_out=_BACKUP),
    "file.size": Invariant(holds="files have the size that their commit states", way_out=_BACKUP),
    "file.kind": Invariant(
        holds="a copy-on-write table has no log files", way_out="remove the file, or correct hoodie.table.type"
    ),
    "file.orphan": Invariant(
        holds="every data file is named by a write",
        way_out="no reader sees it; `lakehouse clean orphans --delete` removes it once it is old enough",
        severity=Severity.WARNING,
    ),
    "leftover": Invariant(
        holds="writes that are over left no markers, staged rows, heartbeats or unfinished files",
        way_out="the next write sweeps them up",
        severity=Severity.WARNING,
    ),
    "partition.metadata": Invariant(
        holds="every partition has a readable partition metadata file",
        way_out="Hudi does not find the partition: the next write of a new file to it makes the file anew",
    ),
    "schema.readable": Invariant(
        holds="the newest commit's schema parses", way_out="restore to a commit before it, or write with a good schema"
    ),
    "bucket.layout": Invariant(
        holds="file ids begin with a bucket of their partition, and a bucket has one file group",
        way_out="a writer without the bucket index, or with another number of buckets, was at it: overwrite the "
        "partition from its rows with the index the table was made with",
    ),
    "bucket.rows": Invariant(
        holds="rows are in the bucket that the hash of their key says",
        way_out="upserts do not find such rows: overwrite the partition from its rows with the bucket index",
    ),
    "file.readable": Invariant(holds="base files are whole parquet files", way_out=_BACKUP),
    "file.schema": Invariant(
        holds="base files are readable by the table's schema",
        way_out="a writer changed a type in a way that types cannot change: overwrite the partition",
    ),
    "file.rows": Invariant(holds="base files have as many rows as their commit states", way_out=_REWRITE),
    "file.keys": Invariant(holds="every row has a record key", way_out=_REWRITE),
    "file.key_values": Invariant(
        holds="stored record keys and partition paths are those that the columns of the row make",
        way_out="a key or partition column changed its type, or another key generator wrote the rows: upserts do not "
        "find such rows; read them, delete them by their stored key, and upsert them",
        severity=Severity.WARNING,
    ),
    "file.meta_columns": Invariant(
        holds="_hoodie_partition_path and _hoodie_file_name of base files are those of the file",
        way_out=f"the file was moved or copied by hand; {_FOOTER}",
    ),
    "file.key_range": Invariant(
        holds="footers have the least and the greatest record key",
        way_out=f"writers that go by the range do not find its rows; {_FOOTER}",
    ),
    "file.bloom": Invariant(
        holds="the bloom filters of footers miss no key",
        way_out=f"writers that ask the filter do not find its rows; {_FOOTER}",
    ),
    "file.bloom_absent": Invariant(
        holds="footers of base files have a bloom filter",
        way_out="they were written with hoodie.parquet.bloom.filter.enabled=false, or by a writer that makes none: "
        "Hudi's bloom index opens them at every lookup; `lakehouse index build` gives them one, if filters are enabled",
        severity=Severity.WARNING,
    ),
    "file.column_ranges": Invariant(
        holds="the column ranges in commits contain the values of their files",
        way_out=f"queries with conditions miss rows of the file; {_FOOTER}",
    ),
    "log.readable": Invariant(holds="log files are whole, block by block", way_out=_BACKUP),
    "log.instant": Invariant(holds="the blocks of a log file are of the instant in its name", way_out=_BACKUP),
    "key.unique": Invariant(
        holds="a key has one row in its partition, with a global index in the table",
        way_out="insert and bulk_insert add keys again where they are told to, upserts never do: delete the key, then "
        "upsert its row",
        severity=Severity.WARNING,
    ),
    "key.global": Invariant(
        holds="a key is in one partition (looked at with keys=global)",
        way_out="a key is unique in its partition unless the index is global: delete its rows from the partitions "
        "where they are out of date, and write with hoodie.index.type=GLOBAL_SIMPLE, or make the partition column part "
        "of the record key",
        severity=Severity.WARNING,
    ),
    "unchecked": Invariant(
        holds="everything can be looked at",
        way_out="repair what is named above, or use a reader that supports it, then validate again",
        severity=Severity.WARNING,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: the name of the invariant, and what breaks it where; paths relative to the table."""

    invariant: str
    problem: str
    path: str = ""
    instant: str = ""

    def __post_init__(self) -> None:
        assert self.invariant in INVARIANTS, f"{self.invariant} has to be declared"

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return INVARIANTS[self.invariant].severity

    @property
    def way_out(self) -> str:
        """What to do."""
        return INVARIANTS[self.invariant].way_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """What a validation found, worst first; `rows` were read, deletes in logs included (0 unless `deep`)."""

    location: str
    deep: bool
    findings: tuple[Finding, ...]
    instants: int
    files: int
    file_groups: int
    rows: int = 0

    @property
    def corrupt(self) -> tuple[Finding, ...]:
        """What a person has to repair."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.CORRUPT)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What harms no reader."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        found = [
            {"invariant": f.invariant, "severity": str(f.severity), "path": f.path, "instant": f.instant}
            | {"problem": f.problem, "way out": f.way_out}
            for f in self.findings
        ]
        counts = {"corrupt": len(self.corrupt), "warnings": len(self.warnings)}
        return {**{k: v for k, v in asdict(self).items() if k != "findings"}, **counts, "findings": found}


class KeyScope(StrEnum):
    """Within what a validation looks for keys that have several rows.

    PARTITION: each partition, or the table where its index is global; a part of a deep validation. GLOBAL: the whole
    table besides, whatever its index; the key columns of all newest slices are read.
    """

    PARTITION = "partition"
    GLOBAL = "global"


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, what is corrupt in front, else in the order found."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.severity is not Severity.CORRUPT))
