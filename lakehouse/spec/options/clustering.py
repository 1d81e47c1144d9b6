"""Options of clustering: when, which partitions and files, and in which order their rows are laid out."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError, nearest
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.options.option import option
from lakehouse.spec.options.values import check_pattern

_MB = 1024 * 1024
_PLAN = "hoodie.clustering.plan.strategy."
#: Keys that stand in plans, too.
PARTITIONS = _PLAN + "partition.selected"
SORT_COLUMNS = _PLAN + "sort.columns"
LAYOUT = "hoodie.layout.optimize.strategy"
_UPDATES = "hoodie.clustering.updates.strategy"
REGEX = _PLAN + "partition.regex.pattern"
LAYOUTS = ("linear", "z-order", "hilbert")
#: Our names of what happens to writes of groups that are being clustered, and what Hudi calls the class.
UPDATES = {"reject": "SparkRejectUpdateStrategy", "give_way": "SparkAllowUpdateStrategy"}
FILTER_MODES = ("NONE", "RECENT_DAYS", "SELECTED_PARTITIONS", "DAY_ROLLING")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringFilter:
    """Which partitions a clustering plan looks at: those selected, less those the pattern and the mode rule out."""

    partitions: str = option(
        PARTITIONS, "", "Partitions that are clustered, by their paths, comma separated; default all."
    )
    partition_pattern: str = option(
        REGEX, "", "Partitions are clustered whose whole path matches this regular expression."
    )
    partition_mode: str = option(
        "hoodie.clustering.plan.partition.filter.mode",
        "NONE",
        "Partitions are clustered: all; the newest ones by name; those between two names; of those in order one in "
        "twenty-four, by the hour.",
        choices=FILTER_MODES,
    )
    lookback_partitions: int = option(
        _PLAN + "daybased.lookback.partitions", 2, "RECENT_DAYS: newest partitions that are taken."
    )
    skip_latest_partitions: int = option(
        _PLAN + "daybased.skipfromlatest.partitions", 0, "RECENT_DAYS: newest partitions that are left out before."
    )
    first_partition: str = option(
        _PLAN + "cluster.begin.partition", "", "SELECTED_PARTITIONS: the first of them, inclusive."
    )
    last_partition: str = option(
        _PLAN + "cluster.end.partition", "", "SELECTED_PARTITIONS: the last of them, inclusive."
    )

    def __post_init__(self) -> None:
        """Raise UserError for a pattern that is none, and for a range that is not given."""
        check_pattern(REGEX, self.partition_pattern)
        if self.partition_mode == "SELECTED_PARTITIONS" and not (self.first_partition and self.last_partition):
            raise SettingError(
                f"option hoodie.clustering.plan.partition.filter.mode={self.partition_mode} needs "
                f"{_PLAN}cluster.begin.partition and {_PLAN}cluster.end.partition",
                setting="hoodie.clustering.plan.partition.filter.mode",
            )

    def covers(self, partition: str) -> bool:
        """Return whether the pattern matches the whole path of a partition."""
        return compile_pattern(self.partition_pattern, f"option {REGEX}").matches(partition)

    @property
    def selected_partitions(self) -> tuple[str, ...]:
        """The partitions that were selected by their paths; none stands for all."""
        return tuple(name.strip().strip("/") for name in self.partitions.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPolicy(ClusteringFilter):
    """When a table is clustered, which files a plan takes, and how their rows are ordered."""

    max_commits: int = option(
        "hoodie.clustering.async.max.commits",
        4,
        "Commits since the last clustering that make one due.",
        aliases=("hoodie.clustering.inline.max.commits",),
    )
    small_file_bytes: int = option(
        _PLAN + "small.file.limit", 300 * _MB, "Clustering takes base files below this many bytes."
    )
    target_file_bytes: int = option(
        _PLAN + "target.file.max.bytes", 1024 * _MB, "Bytes of the files that a clustering writes, at most."
    )
    group_bytes: int = option(
        _PLAN + "max.bytes.per.group", 2048 * _MB, "Bytes of files that are clustered together, by one task."
    )
    max_groups: int = option(_PLAN + "max.num.groups", 30, "Groups of files in one plan, at most.")
    single_group: bool = option(
        _PLAN + "single.group.clustering.enabled",
        True,
        "A file that is alone in its group is rewritten if that gains anything: an order, its logs merged.",
    )
    whole_partitions: bool = option(
        "lakehouse.clustering.whole.partitions",
        False,
        "Partitions are clustered as a whole: their files, of any size, are one group.",
    )
    sort_columns: str = option(SORT_COLUMNS, "", "Columns that rows are ordered by, comma separated.")
    layout: str = option(
        LAYOUT,
        "linear",
        "How several sort columns make one order: one after the other, or along a curve that keeps rows near that are "
        f"near in all of them: {', '.join(LAYOUTS)}.",
    )
    updates: str = option(
        _UPDATES,
        "reject",
        "A write of files that are planned to be clustered is refused (reject), or goes on, and the clustering gives "
        "way to it (give_way); Hudi's SparkRejectUpdateStrategy, SparkAllowUpdateStrategy.",
    )

    def __post_init__(self) -> None:
        """Bring Hudi's spellings to ours; raise UserError for values that mean nothing."""
        ClusteringFilter.__post_init__(self)
        object.__setattr__(self, "layout", _layout(self.layout))
        object.__setattr__(self, "updates", _updates(self.updates))
        columns = [name.strip() for name in self.sort_columns.split(",") if name.strip()]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise SettingError(
                f"option {SORT_COLUMNS}={self.sort_columns!r}: column {twice!r} stands there twice",
                setting=SORT_COLUMNS,
            )
        object.__setattr__(self, "sort_columns", ",".join(columns))
        for name, key in (("target_file_bytes", "target.file.max.bytes"), ("group_bytes", "max.bytes.per.group")):
            if getattr(self, name) < 1:
                raise SettingError(
                    f"option {_PLAN}{key}={getattr(self, name)}: must be at least 1", setting=f"{_PLAN}{key}"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The sort columns in their order."""
        return tuple(self.sort_columns.split(",")) if self.sort_columns else ()


def _layout(name: str) -> str:
    plain = name.strip().lower().replace("-", "").replace("_", "")
    for known in LAYOUTS:
        if known.replace("-", "") == plain:
            return known
    raise SettingError(
        f"option {LAYOUT}={name!r}: must be one of {', '.join(LAYOUTS)}.{nearest(name, LAYOUTS)}", setting=LAYOUT
    )


def _updates(name: str) -> str:
    short = name.strip().rpartition(".")[2]
    for ours, hudis in UPDATES.items():
        if short.lower() in (ours, hudis.lower()):
            return ours
    raise SettingError(
        f"option {_UPDATES}={name!r}: must be one of {', '.join(UPDATES)}.{nearest(short, UPDATES)}", setting=_UPDATES
    )
