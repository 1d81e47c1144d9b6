"""Plans and metadata of `.indexing` instants (TL-4.9), and the indexes that a build creates (MDT-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.display import Condition, Readable, Shown, count_text
from lakehouse.model.partition_kind import PartitionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPartition:
    """One partition of the metadata table that an indexing builds.

    Attributes:
        partition: Name of the partition, such as `record_index` or `secondary_index_city`.
        up_to: Requested time of the newest write that was completed, without a pending write before it, when the
            indexing was planned. Empty for a table without writes.
        extra: Strings that the plan stores.
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
    """The result of an indexing. `operation` is Hudi's operation type; Hudi 1.2 leaves it out."""

    partitions: tuple[IndexedPartition, ...]
    operation: str | None = None


#: The arguments after the column, for functions with several arguments; others have a format.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "substring": ("pos", "len"),
    "regexp_extract": ("pattern", "idx"),
    "regexp_replace": ("pattern", "replacement"),
    "date_add": ("days",),
    "date_sub": ("days",),
    "trim": ("trimString",),
    "ltrim": ("trimString",),
    "rtrim": ("trimString",),
}
FORMAT_ARGUMENT = ("format",)
SECONDARY_INDEX, COLUMN_STATS, BLOOM_FILTERS = "secondary_index", "column_stats", "bloom_filters"
IDENTITY = "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredIndex(Readable):
    """An index that a user declares: a secondary index, or an index on an expression.

    Attributes:
        name: Name of the index, without the prefix of its partition.
        kind: The stored content: `secondary_index`, or for an expression `column_stats` or `bloom_filters`.
        column: The indexed column.
        function: The function of the column; `identity` for a secondary index.
        options: Arguments of the function by name, such as `format`.
    """

    name: str
    kind: str
    column: str
    function: str = IDENTITY
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        """The partition of the metadata table."""
        is_secondary = self.kind == SECONDARY_INDEX
        return f"{PartitionKind.SECONDARY_INDEX if is_secondary else PartitionKind.EXPRESSION_INDEX}{self.name}"

    @property
    def call(self) -> str:
        """The function with its arguments, such as `substring(city, 1, 3)`; `identity` for a secondary index."""
        if self.kind == SECONDARY_INDEX:
            return self.function
        names = ARGUMENTS.get(self.function, FORMAT_ARGUMENT)
        arguments = [self.options[name] for name in names if name in self.options]
        return f"{self.function}({', '.join([self.column, *arguments])})"

    def _shown(self) -> Shown:
        of = self.column if self.kind == SECONDARY_INDEX else self.call
        return Shown(f"index {self.name}: {self.kind} of {of}", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDue(Condition):
    """Whether indexes of the metadata table are declared and not built.

    `missing` are the partitions of the metadata table to build; `building` those that a pending plan builds.
    """

    due: bool
    reason: str
    missing: tuple[str, ...] = ()
    building: tuple[str, ...] = ()
