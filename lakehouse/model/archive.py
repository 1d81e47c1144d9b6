"""The archived timeline: its actions, its files, and plans that move actions to it (TL-5.2, TL-5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedAction:
    """A completed action of the archived timeline, with the content of its files (None if a file is empty)."""

    instant: Instant
    metadata: bytes | None = None
    plan: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """A file of the archived timeline, at a level of the tree; its actions were requested from `first` to `last`."""

    name: str
    first: str
    last: str
    level: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan(Readable):
    """The completed actions to archive, by requested time; `kept` is the reason why the next action stays."""

    instants: tuple[Instant, ...]
    kept: str

    @property
    def newest(self) -> str:
        """The requested time of the last action."""
        return self.instants[-1].requested

    def _shown(self) -> Shown:
        span = f" from {self.instants[0].requested} to {self.newest}" if self.instants else ""
        rows = [{"action": i.action, "requested": i.requested, "completed": i.completed} for i in self.instants]
        return Shown(f"archive plan: {count_text(len(self.instants), 'action')}{span}", {"kept": self.kept}, rows)
