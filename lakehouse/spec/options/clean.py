"""Options of clean: which file slices stay readable."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPolicy:
    """What a clean leaves: files that the last writes, or hours, or versions of each file group need."""

    policy: str = option(
        "hoodie.clean.policy",
        "KEEP_LATEST_COMMITS",
        "Whether writes, versions of each file group or hours are counted of what a clean leaves readable.",
        choices=("KEEP_LATEST_COMMITS", "KEEP_LATEST_FILE_VERSIONS", "KEEP_LATEST_BY_HOURS"),
        aliases=("hoodie.cleaner.policy",),
    )
    commits_retained: int = option(
        "hoodie.clean.commits.retained",
        10,
        "KEEP_LATEST_COMMITS: newest writes as of which the table stays readable.",
        aliases=("hoodie.cleaner.commits.retained",),
    )
    hours_retained: int = option(
        "hoodie.clean.hours.retained",
        24,
        "KEEP_LATEST_BY_HOURS: hours back to which the table stays readable.",
        aliases=("hoodie.cleaner.hours.retained",),
    )
    versions_retained: int = option(
        "hoodie.clean.fileversions.retained",
        3,
        "KEEP_LATEST_FILE_VERSIONS: newest versions that are left of each file group.",
        aliases=("hoodie.cleaner.fileversions.retained",),
    )
    incremental: bool = option(
        "hoodie.clean.incremental.enabled",
        True,
        "List only partitions that were written to since the last clean's earliest retained write.",
        aliases=("hoodie.cleaner.incremental.mode",),
    )
    trigger: str = option(
        "hoodie.clean.trigger.strategy",
        "NUM_COMMITS",
        "What makes a clean due: writes since the last one.",
        choices=("NUM_COMMITS",),
    )
    max_commits: int = option(
        "hoodie.clean.trigger.max.commits",
        1,
        "Writes since the last clean that make one due.",
        aliases=("hoodie.clean.max.commits",),
    )
    orphan_hours: int = option(
        "lakehouse.clean.orphans.hours", 168, "Hours after which a data file that no write names is an orphan."
    )

    def __post_init__(self) -> None:
        """Raise UserError for a policy that would leave nothing."""
        for declared in fields(self):
            if declared.name.endswith("_retained") and getattr(self, declared.name) < 1:
                raise SettingError(
                    f"option {declared.metadata['key']}={getattr(self, declared.name)}: must be at least 1: the newest "
                    "rows are always left",
                    setting=declared.metadata["key"],
                )
