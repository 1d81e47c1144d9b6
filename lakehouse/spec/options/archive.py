"""Options of archive: which completed instants stay on the active timeline."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePolicy:
    """When completed instants move to the archived timeline, and how many stay on the active timeline."""

    max_commits: int = option(
        "hoodie.keep.max.commits", 30, "An archive is due if the active timeline has more completed commits than this."
    )
    min_commits: int = option(
        "hoodie.keep.min.commits", 20, "Number of completed commits that an archive leaves on the active timeline."
    )
    merge_batch: int = option(
        "hoodie.timeline.compaction.batch.size",
        10,
        "Number of files on one level of the archived timeline that are merged into one file.",
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        "Also archive commits after a savepoint. The table can then no longer be restored to that savepoint.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for numbers that contradict each other."""
        if not 1 <= self.min_commits < self.max_commits:
            raise SettingError(
                f"options hoodie.keep.min.commits={self.min_commits} and hoodie.keep.max.commits={self.max_commits}: "
                "the first must be at least 1 and less than the second",
                setting="hoodie.keep.min.commits",
                related=("hoodie.keep.max.commits",),
            )
        if self.merge_batch < 2:
            raise SettingError(
                f"option hoodie.timeline.compaction.batch.size={self.merge_batch}: must be at least 2 to merge files",
                setting="hoodie.timeline.compaction.batch.size",
            )
