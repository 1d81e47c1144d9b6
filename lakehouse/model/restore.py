"""Metadata of savepoints and restores, and plans of restores (TL-4.8, TL-7.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.commit import RollbackMetadata
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointMetadata:
    """Author, time (UTC milliseconds) and comment of a savepoint; `files` are its base and log files by partition."""

    user: str
    at_ms: int
    comment: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint(Readable):
    """A savepoint; the savepoint of a dry run is not completed."""

    instant: Instant
    metadata: SavepointMetadata

    @property
    def requested(self) -> str:
        """The requested time of the commit that the savepoint keeps."""
        return self.instant.requested

    def _shown(self) -> Shown:
        files, metadata = sum(map(len, self.metadata.files.values())), self.metadata
        line = f"savepoint of {self.requested}: keeps {count_text(files, 'file')}"
        return Shown(line, {"user": metadata.user or None, "comment": metadata.comment or None})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan(Readable):
    """The instants that a restore rolls back, as (requested time, action); `target` is None in plans of Hudi 0.x."""

    target: str | None
    instants: tuple[tuple[str, str], ...] = ()

    def _shown(self) -> Shown:
        to = f" to {self.target}" if self.target else ""
        rows = [{"requested": requested, "action": action} for requested, action in self.instants]
        return Shown(f"restore plan{to}: rolls back {count_text(len(self.instants), 'instant')}", {}, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMetadata:
    """The result of a restore: its instants, as (requested time, action), and the result of each rollback."""

    start_time: str
    seconds: float
    instants: tuple[tuple[str, str], ...]
    rollbacks: Mapping[str, tuple[RollbackMetadata, ...]] = field(default_factory=dict)
