"""Facts about one table, the input of alarm rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.platform.catalog.run_history import Run
from lakehouse.spec.contracts.fleet import TableNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Facts about one table at one time. Times are UTC milliseconds.

    Attributes:
        table: Full name, `namespace.table`.
        now_ms: Time of the evaluation.
        numbers: Newest numbers of the table.
        history: Earlier numbers by the hour in which they were recorded, oldest first.
        runs: Runs of the last day by service, newest first.
        expired_leases: Expiry times of leases that no run released, by service.
        error: Reason why the table cannot be read; None if it can.
        service_errors: Why services of a table that can be read cannot be assessed, by service.
        is_ingested: Whether the spec of the table declares an ingestion.
    """

    table: str
    now_ms: int
    numbers: TableNumbers = field(default_factory=TableNumbers)
    history: tuple[tuple[int, TableNumbers], ...] = ()
    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    expired_leases: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    service_errors: Mapping[str, str] = field(default_factory=dict)
    is_ingested: bool = False

    def earlier(self, window_s: float) -> TableNumbers | None:
        """Return the newest numbers that are at least `window_s` old, or else the oldest numbers.

        Return None if there are none.
        """
        until = self.now_ms - round(window_s * 1000)
        old = [numbers for hour_ms, numbers in self.history if hour_ms <= until]
        return old[-1] if old else self.history[0][1] if self.history else None
