"""Changes of a metastore sync, as parts of the `sync` service's plan and report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartitionChange(StrEnum):
    """The change of a sync to one metastore partition."""

    #: The sync adds the partition.
    ADD = "add"
    #: The sync changes the declaration of the partition.
    ALTER = "alter"
    #: The sync removes the partition.
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTable:
    """Changes of a sync to one metastore table, as numbers of partitions.

    `table` is `database.table`. `changes` names the altered parts of the table's declaration.
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
