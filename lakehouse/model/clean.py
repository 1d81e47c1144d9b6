"""What a clean will remove and what one removed: plans and reports as they stand on the timeline (TL-4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """Content of `clean.requested`.

    `files` maps a partition to the paths, relative to the table, that go. `earliest` is the first write of those that
    stay readable as they were (None: the policy counts versions of files, not writes), `last_completed` the requested
    time of the newest completed write. `partitions_to_delete` hold nothing else.
    """

    policy: str
    earliest: Instant | None
    last_completed: str
    files: Mapping[str, tuple[str, ...]]
    partitions_to_delete: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths, partition by partition."""
        return tuple(path for paths in self.files.values() for path in paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """What a clean did in one partition: bare names of the files that are gone, and of those it could not delete."""

    policy: str
    deleted: tuple[str, ...]
    failed: tuple[str, ...] = ()
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanMetadata:
    """Content of a completed clean. `earliest` is the requested time of the plan's earliest write, "" if it has none.

    `start_time` is the requested time of the clean, `extra` is that of the plan.
    """

    start_time: str
    seconds: float
    earliest: str
    last_completed: str
    partitions: Mapping[str, CleanedPartition] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def deleted(self) -> tuple[str, ...]:
        """Paths, relative to the table, of the files that are gone."""
        return tuple(
            f"{partition}/{name}" if partition else name
            for partition, cleaned in self.partitions.items()
            for name in cleaned.deleted
        )
