"""Options of clean: which file slices stay readable."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import LONGEST_HOURS

ORPHANS_SHARED = "lakehouse.clean.orphans.shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPolicy:
    """Which versions of files a clean retains: by commits, by hours, or by versions of each file group."""

    policy: str = option(
        "hoodie.clean.policy",
        "KEEP_LATEST_COMMITS",
        "What a clean retains: the newest commits, the newest versions of each file group, or a number of hours.",
        choices=("KEEP_LATEST_COMMITS", "KEEP_LATEST_FILE_VERSIONS", "KEEP_LATEST_BY_HOURS"),
        aliases=("hoodie.cleaner.policy",),
    )
    commits_retained: int = option(
        "hoodie.clean.commits.retained",
        10,
        "KEEP_LATEST_COMMITS: number of newest commits as of which the table stays readable.",
        aliases=("hoodie.cleaner.commits.retained",),
    )
    hours_retained: int = option(
        "hoodie.clean.hours.retained",
        24,
        "KEEP_LATEST_BY_HOURS: number of hours for which the table stays readable as of any commit.",
        most=LONGEST_HOURS,
        aliases=("hoodie.cleaner.hours.retained",),
    )
    versions_retained: int = option(
        "hoodie.clean.fileversions.retained",
        3,
        "KEEP_LATEST_FILE_VERSIONS: number of newest versions to retain of each file group.",
        aliases=("hoodie.cleaner.fileversions.retained",),
    )
    incremental: bool = option(
        "hoodie.clean.incremental.enabled",
        True,
        "Plan with the partitions written since the earliest commit that the last clean retained, not with all.",
        aliases=("hoodie.cleaner.incremental.mode",),
    )
    trigger: str = option(
        "hoodie.clean.trigger.strategy",
        "NUM_COMMITS",
        "What makes a clean due: commits since the last clean.",
        choices=("NUM_COMMITS",),
    )
    max_commits: int = option(
        "hoodie.clean.trigger.max.commits",
        1,
        "Number of commits since the last clean after which the next one is due.",
        aliases=("hoodie.clean.max.commits",),
    )
    orphan_shared: bool = option(
        ORPHANS_SHARED,
        False,
        "Delete orphan files even if other programs write the table; otherwise they are only reported.",
    )
    orphan_hours: int = option(
        "lakehouse.clean.orphans.hours",
        168,
        "Age in hours from which a data file that no instant references counts as an orphan.",
        most=LONGEST_HOURS,
    )

    def __post_init__(self) -> None:
        """Raise UserError for a policy that would retain nothing."""
        for declared in fields(self):
            if declared.name.endswith("_retained") and getattr(self, declared.name) < 1:
                raise SettingError(
                    f"option {declared.metadata['key']}={getattr(self, declared.name)}: must be at least 1: a clean "
                    "always retains the newest rows",
                    setting=declared.metadata["key"],
                )
