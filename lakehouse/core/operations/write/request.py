"""The request of a caller to write rows or to delete partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.rows.cut_times import CutTimes
from lakehouse.model.commit import Operation
from lakehouse.model.drift import BatchColumns

_REPLACING = {Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The parameters of one write.

    Attributes:
        operation: The kind of write.
        frame: Rows, in a type that the engine accepts; None for DELETE_PARTITION.
        partitions: The partitions to delete, for DELETE_PARTITION.
        extra: Extra metadata of the commit.
        allow_empty: Commit even if no row changes.
        precondition: What must still hold at the commit; otherwise the write ends with a Conflict.
        columns: Which columns the source provided, if rows differ in that.
        deletes_yield: Of the rows of a key, deletes are dropped if there are others, whatever their order.
        cut_times: Counts the rows whose times lose digits while the frame is read.
    """

    operation: Operation
    frame: Any = None
    partitions: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False
    precondition: Precondition | None = None
    columns: BatchColumns | None = None
    deletes_yield: bool = False
    cut_times: CutTimes = field(default_factory=CutTimes)

    @property
    def replaces(self) -> bool:
        """Whether the commit replaces file groups (a replacecommit)."""
        return self.operation in _REPLACING

    @property
    def looks_up_keys(self) -> bool:
        """Whether the write looks for stored records with the keys of its rows."""
        return self.operation in (Operation.UPSERT, Operation.DELETE)
