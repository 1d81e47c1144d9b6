"""Plans and results of clean, as they are stored on the timeline (TL-4.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lakehouse.model.display import Readable, Shown, count_text, sentence
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan(Readable):
    """Content of `clean.requested`.

    Attributes:
        policy: The cleaning policy.
        earliest: The earliest write whose version of the table stays readable; None if the policy counts file versions
            instead of writes.
        last_completed: The requested time of the newest completed write.
        files: The files to delete by partition, as paths relative to the table.
        partitions_to_delete: Partitions that have no other files.
        extra: Metadata of the plan.
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

    def metadata(self, requested: str, seconds: float, deleted_partitions: Collection[str] = ()) -> CleanMetadata:
        """Return the content of the completed clean after all files of the plan were deleted.

        `requested` is the requested time of the clean, `seconds` its duration, and `deleted_partitions` is the deleted
        part of `partitions_to_delete`.
        """
        return CleanMetadata(
            start_time=requested,
            seconds=seconds,
            earliest="" if self.earliest is None else self.earliest.requested,
            last_completed=self.last_completed,
            partitions={
                partition: CleanedPartition(
                    policy=self.policy,
                    deleted=tuple(path.rpartition("/")[2] for path in paths),
                    is_deleted=partition in deleted_partitions,
                )
                for partition, paths in self.files.items()
            },
            extra=self.extra,
        )

    def _shown(self) -> Shown:
        earliest = None if self.earliest is None else self.earliest.requested
        line = sentence(
            f"clean plan: deletes {count_text(sum(map(len, self.files.values())), 'file')}",
            count_text(len(self.files), "partition"),
            f"keeps versions from {earliest} on" if earliest else "",
        )
        rows = [{"partition": partition, "files": len(paths)} for partition, paths in self.files.items()]
        return Shown(line, {"policy": self.policy, "earliest_retained": earliest}, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """The result of a clean in one partition: names of deleted files, and of files that could not be deleted."""

    policy: str
    deleted: tuple[str, ...]
    failed: tuple[str, ...] = ()
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanMetadata:
    """Content of a completed clean.

    `start_time` is the requested time of the clean. `earliest` is the requested time of the plan's earliest write, ""
    if it has none. `extra` is copied from the plan.
    """

    start_time: str
    seconds: float
    earliest: str
    last_completed: str
    partitions: Mapping[str, CleanedPartition] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def deleted(self) -> tuple[str, ...]:
        """The deleted files, as paths relative to the table."""
        return tuple(
            f"{partition}/{name}" if partition else name
            for partition, cleaned in self.partitions.items()
            for name in cleaned.deleted
        )
