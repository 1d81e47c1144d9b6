"""The indexes of one table: the output of `lakehouse index list`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class IndexState(StrEnum):
    """The state of an index."""

    #: Readers and writers use it.
    IN_USE = "in_use"
    #: A plan is building it; commits already maintain it.
    BUILDING = "building"
    #: Options or an index definition declare it, but no plan builds it yet.
    DECLARED = "declared"
    #: It exists, but readers do not use it; `reason` explains why.
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """One index of a table.

    Attributes:
        name: Name of the index, as `lakehouse index drop` takes it; for the writer index, its type.
        kind: `writer index` (finds the file of a record key), or the content of a metadata partition: `file
            listing`, `column statistics`, `bloom filters`, `record index`, `partition statistics`, `secondary index`,
            or `expression index` with one of these.
        state: Whether readers and writers use it.
        columns: The indexed columns; empty if all columns are indexed, or for a writer index.
        expression: The function of an expression index.
        partition: Partition of the metadata table; empty for an index that is not stored there.
        bytes: Size of its files; None if it has none.
        reason: Why it is not in use; empty if it is in use.
    """

    name: str
    kind: str
    state: IndexState
    columns: tuple[str, ...] = ()
    expression: str = ""
    partition: str = ""
    bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIndexes(Document):
    """Result of `lakehouse index list`: the writer index first, then the indexes in the metadata table."""

    table: str
    indexes: tuple[IndexInfo, ...] = ()
