"""Options of clustering: when it is due, which partitions and files it rewrites, and the order of the rows."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError, nearest
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.options.option import option
from lakehouse.spec.options.values import check_pattern
from lakehouse.spec.table.bucket_rules import MAX_BUCKETS

_MB = 1024 * 1024
_PLAN = "hoodie.clustering.plan.strategy."
#: Keys that clustering plans also contain.
PARTITIONS = _PLAN + "partition.selected"
SORT_COLUMNS = _PLAN + "sort.columns"
LAYOUT = "hoodie.layout.optimize.strategy"
BUCKETS = "lakehouse.clustering.buckets"
AUTO = "auto"
_UPDATES = "hoodie.clustering.updates.strategy"
REGEX = _PLAN + "partition.regex.pattern"
LAYOUTS = ("linear", "z-order", "hilbert")
#: For each treatment of writes to file groups with a pending clustering, the simple name of Hudi's class.
UPDATES = {"reject": "SparkRejectUpdateStrategy", "give_way": "SparkAllowUpdateStrategy"}
FILTER_MODES = ("NONE", "RECENT_DAYS", "SELECTED_PARTITIONS", "DAY_ROLLING")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringFilter:
    """Selects the partitions of a clustering plan.

    A partition must be selected and must match the pattern and the mode.
    """

    partitions: str = option(PARTITIONS, "", "Paths of the partitions to cluster, comma separated; default all.")
    partition_pattern: str = option(
        REGEX, "", "Cluster only partitions whose whole path matches this regular expression."
    )
    partition_mode: str = option(
        "hoodie.clustering.plan.partition.filter.mode",
        "NONE",
        "Which partitions to cluster: all; the newest by name; those between two names; or, each hour of the day, "
        "every twenty-fourth in the order of names.",
        choices=FILTER_MODES,
    )
    lookback_partitions: int = option(
        _PLAN + "daybased.lookback.partitions", 2, "RECENT_DAYS: number of newest partitions to cluster."
    )
    skip_latest_partitions: int = option(
        _PLAN + "daybased.skipfromlatest.partitions", 0, "RECENT_DAYS: number of newest partitions to skip first."
    )
    first_partition: str = option(
        _PLAN + "cluster.begin.partition", "", "SELECTED_PARTITIONS: the first partition, inclusive."
    )
    last_partition: str = option(
        _PLAN + "cluster.end.partition", "", "SELECTED_PARTITIONS: the last partition, inclusive."
    )

    def __post_init__(self) -> None:
        """Raise UserError for a pattern that does not compile, and for a missing range of partitions."""
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
        """The paths of the selected partitions; empty for all."""
        return tuple(name.strip().strip("/") for name in self.partitions.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPolicy(ClusteringFilter):
    """When a table is clustered, which files a plan selects, and how their rows are ordered."""

    max_commits: int = option(
        "hoodie.clustering.async.max.commits",
        4,
        "Number of commits since the last clustering after which the next one is due.",
        aliases=("hoodie.clustering.inline.max.commits",),
    )
    small_file_bytes: int = option(
        _PLAN + "small.file.limit", 300 * _MB, "Base files smaller than this are clustered, in bytes."
    )
    target_file_bytes: int = option(
        _PLAN + "target.file.max.bytes", 1024 * _MB, "Maximum size of files that a clustering writes, in bytes."
    )
    group_bytes: int = option(
        _PLAN + "max.bytes.per.group",
        2048 * _MB,
        "Maximum size of the files that one task clusters together, in bytes.",
    )
    max_groups: int = option(_PLAN + "max.num.groups", 30, "Maximum number of file groups in one plan.")
    single_group: bool = option(
        _PLAN + "single.group.clustering.enabled",
        True,
        "Also rewrite a file that is alone in its group, if that sorts its rows or merges its log files.",
    )
    whole_partitions: bool = option(
        "lakehouse.clustering.whole.partitions",
        False,
        "Cluster whole partitions: all files of a partition, of any size, are one group.",
    )
    sort_columns: str = option(SORT_COLUMNS, "", "Columns by which rows are sorted, comma separated.")
    layout: str = option(
        LAYOUT,
        "linear",
        "Sort order over several columns: column by column (linear), or along a space-filling curve that keeps rows "
        f"with similar values in all columns together: {', '.join(LAYOUTS)}.",
    )
    updates: str = option(
        _UPDATES,
        "give_way",
        "A write to file groups with a pending clustering continues and the clustering is aborted (give_way), or the "
        "write is refused (reject). Hudi: SparkAllowUpdateStrategy, SparkRejectUpdateStrategy (Hudi's default).",
    )

    buckets: str = option(
        BUCKETS,
        "",
        "Bucket index: the number of buckets that the selected partitions get. auto: a partition doubles or halves its "
        "number by the thresholds of the bucket index. Empty: the number stays.",
    )

    def __post_init__(self) -> None:
        """Replace Hudi's class names by short names; raise UserError for unknown values."""
        _check_buckets(self.buckets)
        ClusteringFilter.__post_init__(self)
        object.__setattr__(self, "layout", _layout(self.layout))
        object.__setattr__(self, "updates", _updates(self.updates))
        columns = [name.strip() for name in self.sort_columns.split(",") if name.strip()]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise SettingError(
                f"option {SORT_COLUMNS}={self.sort_columns!r}: column {twice!r} occurs twice",
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
        """The sort columns, in order."""
        return tuple(self.sort_columns.split(",")) if self.sort_columns else ()


def _check_buckets(text: str) -> None:
    if text not in ("", AUTO) and not (text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_BUCKETS):
        raise SettingError(
            f"option {BUCKETS}={text!r}: must be a number from 1 to {MAX_BUCKETS}, or {AUTO}", setting=BUCKETS
        )


def _layout(name: str) -> str:
    plain = name.strip().lower().replace("-", "").replace("_", "")
    for layout in LAYOUTS:
        if layout.replace("-", "") == plain:
            return layout
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
