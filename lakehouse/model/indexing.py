"""Plans and metadata of `.indexing` instants (TL-4.9), and the indexes that a build creates (MDT-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.display import Readable, Shown, count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPartition:
    """One partition of the metadata table that an indexing builds.

    Attributes:
        partition: Name of the partition, such as `record_index` or `secondary_index_city`.
        up_to: Requested time of the newest write that was completed, without a pending write before it, when the
            indexing was planned. Empty for a table without writes.
        extra: Texts that the plan stores.
    """

    partition: str
    up_to: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan(Readable):
    """The partitions of the metadata table that an indexing builds."""

    partitions: tuple[IndexedPartition, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the partitions, in the order of the plan."""
        return tuple(info.partition for info in self.partitions)

    def _shown(self) -> Shown:
        rows = [{"partition": info.partition, "up_to": info.up_to} for info in self.partitions]
        return Shown(f"index plan: builds {count_text(len(self.partitions), 'index partition')}", {}, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMetadata:
    """The result of an indexing. `operation` is what Hudi calls the operation type; Hudi 1.2 leaves it out."""

    partitions: tuple[IndexedPartition, ...]
    operation: str | None = None
