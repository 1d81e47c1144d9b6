"""Savepoints and restores: what they say of themselves (TL-4.8, TL-7.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.commit import RollbackMetadata
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointMetadata:
    """Who kept an instant, when (UTC milliseconds) and why; `files` maps partitions to names of base and log files."""

    user: str
    at_ms: int
    comment: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A savepoint; that of a dry run is not completed."""

    instant: Instant
    metadata: SavepointMetadata

    @property
    def requested(self) -> str:
        """The requested time of the commit that it keeps."""
        return self.instant.requested


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a restore rolls back, as (requested time, action), first to last; `target` is None in plans of Hudi 0.x."""

    target: str | None
    instants: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMetadata:
    """What a restore did: the instants it rolled back, as (requested time, action), and how each rollback went."""

    start_time: str
    seconds: float
    instants: tuple[tuple[str, str], ...]
    rollbacks: Mapping[str, tuple[RollbackMetadata, ...]] = field(default_factory=dict)
