"""Details of one table from small reads: the instants of its timeline, one decoded instant, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBars(Document):
    """Instants of a table as parallel lists, ordered by requested time. The form suits 100,000 instants and more.

    Attributes:
        table: Name of the table.
        now_ms: Time of the read.
        instants: Requested times as on the timeline.
        actions: Actions.
        services: The service behind each instant, or `write` (`lakehouse timeline show`).
        states: `requested`, `inflight` or `completed`.
        begin_ms: Requested times in UTC milliseconds.
        end_ms: Completion times in UTC milliseconds; None for a pending instant.
        active: Pending writes with a valid heartbeat. A pending write without one has failed.
    """

    table: str
    now_ms: int
    instants: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    begin_ms: tuple[int, ...] = ()
    end_ms: tuple[int | None, ...] = ()
    active: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantDetail(Document):
    """One instant with its decoded plan or commit.

    Attributes:
        table: Name of the table.
        instant: Requested time.
        action: Action.
        service: The service behind it, or `write`.
        state: `requested`, `inflight` or `completed`.
        completed: Completion time; None for a pending instant.
        operation: Operation of a commit; empty for other actions.
        summary: The changes as one sentence.
        numbers: Rows, files and bytes, summed over the written files, and the number of earlier attempts with a
            conflict.
        watermarks: Watermarks of the sources after a commit, in ISO 8601.
        watermarks_before: Watermarks after the previously completed write.
        partitions: Partitions that the commit wrote, 100 at most.
        files: Written files, 100 at most.
        extra: Extra metadata of the commit without schemas.
        plan: Decoded plan of a service; empty if there is none.
    """

    table: str
    instant: str
    action: str
    state: str
    completed: str | None = None
    service: str = ""
    operation: str = ""
    summary: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    watermarks: Mapping[str, str] = field(default_factory=dict)
    watermarks_before: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    files: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupInfo:
    """The newest file slice of one file group: its base file and log files."""

    partition: str
    file_group: str
    base_instant: str
    base_bytes: int
    log_bytes: int
    log_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBucket:
    """Number and bytes of base files up to `up_to_bytes` (None: no limit) that exceed the previous bucket."""

    up_to_bytes: int | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles(Document):
    """One page of a table's file groups, and a histogram of all base file sizes.

    `target_bytes` is the target size of writers. Files below `small_bytes` are small.
    """

    table: str
    total: int
    offset: int
    target_bytes: int
    small_bytes: int
    groups: tuple[FileGroupInfo, ...] = ()
    histogram: tuple[SizeBucket, ...] = ()
