"""Trigger conditions, plans and results of orphan cleaning and validation, which leave no instant on the timeline."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.display import Condition, Readable, Shown, count_text

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepDue(Condition):
    """Whether a service is due, the reason, and the hours since its last run (None if there was none)."""

    due: bool
    reason: str
    hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan(Readable):
    """The amount that a validation would read: listing, metadata table, `footers` base files, with `deep` all rows."""

    file_groups: int
    footers: int
    metadata_table: bool
    deep: bool

    def _shown(self) -> Shown:
        what = f"{count_text(self.file_groups, 'file group')}, {count_text(self.footers, 'footer')}"
        return Shown(f"validation plan: {what}", {"metadata_table": self.metadata_table, "deep": self.deep})


def upkeep_due(last_ms: int | None, now_ms: int, every_hours: int, *, failed: bool = False) -> UpkeepDue:
    """Return whether a service is due that runs every `every_hours` hours. A failed run is repeated after a day."""
    if last_ms is None:
        return UpkeepDue(due=True, reason=f"it has not run yet; due every {every_hours} h")
    hours = round((now_ms - last_ms) / _HOUR_MS, 1)
    wait = min(every_hours, 24) if failed else every_hours
    state = "failed" if failed else "run"
    return UpkeepDue(due=hours >= wait, reason=f"last {state} {hours} h ago; due after {wait} h", hours=hours)
