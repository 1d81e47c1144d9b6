"""Plans and results of a metastore sync: `lakehouse sync plan | run --output json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class PartitionChange(StrEnum):
    """What a sync does to one partition of the metastore."""

    #: The sync adds the partition.
    ADD = "add"
    #: The sync changes the declaration of the partition.
    ALTER = "alter"
    #: The sync removes the partition.
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTable:
    """Changes of a sync to one table of the metastore, as numbers of partitions.

    `table` is `database.table`. `changes` name what is altered in the declaration of the table.
    """

    table: str
    created: bool = False
    changes: tuple[str, ...] = ()
    added: int = 0
    altered: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedPartition:
    """A change of a sync to one partition. `location` is None for a partition that is dropped."""

    table: str
    change: PartitionChange
    partition: str
    location: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult(Document):
    """Result of `lakehouse sync run`. `skipped` maps partitions that Hive cannot represent to the reason."""

    metastore: str
    tables: tuple[SyncedTable, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPreview(Document):
    """Result of `lakehouse sync plan`: the changes of the next sync, with each partition that it changes."""

    metastore: str
    tables: tuple[SyncedTable, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[SyncedPartition, ...] = ()
