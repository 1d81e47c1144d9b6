"""Changes of a metastore sync, as parts of the plan of the service `sync` and of the report of its run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
