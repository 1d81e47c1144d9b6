"""Output of the commands rollback, savepoint and restore."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult(Document):
    """Result of `lakehouse rollback run`. `target` is the instant of the write, None if there was nothing to do."""

    dry_run: bool
    target: str | None
    action: str = ""
    files: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWritesResult(Document):
    """Result of `lakehouse rollback failed`, as instants of pending writes.

    `active` writes have a heartbeat and stay. `refused` writes stay, because their markers name files that must not be
    deleted.
    """

    dry_run: bool
    rolled_back: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointInfo:
    """One savepoint: its instant, creation time in UTC, author, and the number of its partitions and files."""

    instant: str
    at: str = ""
    by: str = ""
    comment: str = ""
    partitions: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointResult(Document):
    """Result of `lakehouse savepoint create`. If there was nothing to do, `savepoint` is None; see `reason`."""

    dry_run: bool
    savepoint: SavepointInfo | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointDeletion(Document):
    """Result of `lakehouse savepoint delete`."""

    dry_run: bool
    instant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoints(Document):
    """Result of `lakehouse savepoint list`."""

    savepoints: tuple[SavepointInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertedWrite:
    """One write that a restore rolled back, and the number of its files."""

    instant: str
    action: str
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult(Document):
    """Result of `lakehouse restore run`. `target` is None if there was nothing to do, and `reason` explains why.

    `instant` is the instant of the restore, None for a dry run. `reverted` are the writes in the order of their
    rollback.
    """

    dry_run: bool
    target: str | None
    instant: str | None = None
    reverted: tuple[RevertedWrite, ...] = ()
    reason: str = ""
