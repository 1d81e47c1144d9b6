"""The archived timeline: what was moved to it, and what is to be (TL-5.2, TL-5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedAction:
    """A completed action as the archive keeps it: the instant, and what its files held (None: nothing)."""

    instant: Instant
    metadata: bytes | None = None
    plan: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """A file of the archive: actions requested from `first` to `last`, at one level of the tree."""

    name: str
    first: str
    last: str
    level: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """The completed actions that leave the active timeline, by requested time; `kept` says why no more of them do."""

    instants: tuple[Instant, ...]
    kept: str

    @property
    def newest(self) -> str:
        """The requested time of the last of them."""
        return self.instants[-1].requested
