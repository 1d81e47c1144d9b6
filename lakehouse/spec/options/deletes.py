"""Options of deletes: how long a delete keeps older rows of its key away."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import parse_duration

DELETE_RETENTION = "lakehouse.delete_retention"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePolicy:
    """How long deletes are remembered, so that late rows of deleted keys do not bring them back."""

    retention: str = option(
        DELETE_RETENTION,
        "",
        "How long a delete with an ordering value keeps away rows of its key that are older, such as 7d: within that "
        "time rows and deletes may arrive in any order. Empty: as in Hudi, a late row may bring a deleted key back.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for a retention that is no duration."""
        if self.retention.strip():
            parse_duration(DELETE_RETENTION, self.retention)

    @property
    def retention_ms(self) -> int:
        """How long a delete is remembered, in milliseconds; 0 if it is not."""
        return parse_duration(DELETE_RETENTION, self.retention) * 1000 if self.retention.strip() else 0
