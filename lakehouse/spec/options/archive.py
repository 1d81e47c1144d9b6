"""Options of archive: which completed instants stay on the active timeline."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePolicy:
    """When completed actions leave the active timeline for the archive, and how many of them stay."""

    max_commits: int = option(
        "hoodie.keep.max.commits", 30, "More completed commits than these on the timeline make an archive due."
    )
    min_commits: int = option(
        "hoodie.keep.min.commits", 20, "Completed commits that an archive leaves on the timeline."
    )
    merge_batch: int = option(
        "hoodie.timeline.compaction.batch.size", 10, "Files of one level of the archive that are merged into one."
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        "Archive commits after a savepoint, too; the savepoint can then not be restored to.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for numbers that contradict each other."""
        if not 1 <= self.min_commits < self.max_commits:
            raise SettingError(
                f"options hoodie.keep.min.commits={self.min_commits} and hoodie.keep.max.commits={self.max_commits}: "
                "the first must be at least 1, and less than the second",
                setting="hoodie.keep.min.commits",
                related=("hoodie.keep.max.commits",),
            )
        if self.merge_batch < 2:
            raise SettingError(
                f"option hoodie.timeline.compaction.batch.size={self.merge_batch}: it takes two files to merge",
                setting="hoodie.timeline.compaction.batch.size",
            )
