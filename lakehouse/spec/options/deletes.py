"""Options of deletes: how long tombstones exclude older rows of deleted keys."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import parse_duration

DELETE_RETENTION = "lakehouse.delete_retention"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePolicy:
    """How long tombstones are kept, so that late rows do not restore deleted keys."""

    retention: str = option(
        DELETE_RETENTION,
        "",
        "Time during which a delete with an ordering value rejects older rows of its key, such as 7d. Within "
        "this time rows "
        "and deletes may arrive in any order. Empty: as in Hudi, a late row restores a deleted key.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for a retention that is not a duration."""
        if self.retention.strip():
            parse_duration(DELETE_RETENTION, self.retention)

    @property
    def retention_ms(self) -> int:
        """The retention of a tombstone in milliseconds; 0 if no tombstones are written."""
        return parse_duration(DELETE_RETENTION, self.retention) * 1000 if self.retention.strip() else 0
