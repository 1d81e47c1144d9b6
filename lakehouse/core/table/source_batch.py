"""Rows of an ingestion, with facts about them that only their source provides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.errors import UserError
from lakehouse.model.commit import Operation
from lakehouse.model.drift import BatchColumns


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows that a source read; the write methods of a table take it in place of a frame.

    Attributes:
        rows: The frame.
        columns: The columns that the source provided, if this differs between rows.
        deletes_yield: Whether an upsert drops a delete by `_hoodie_is_deleted` if the batch contains another row with
            its key.
    """

    rows: Any
    columns: BatchColumns | None = None
    deletes_yield: bool = False

    def require(self, operation: Operation) -> None:
        """Raise UserError if the operation cannot write such a batch."""
        if self.deletes_yield and operation is not Operation.UPSERT:
            raise UserError(
                f"deletes_yield=True is for upserts, and this is {operation.value.lower()}; remove it",
                argument="deletes_yield",
            )
