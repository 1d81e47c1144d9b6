"""Options for log files in merge-on-read tables, compaction and log compaction."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError, nearest
from lakehouse.spec.options.option import option
from lakehouse.spec.options.values import check_pattern
from lakehouse.spec.quantities import LARGEST_LONG, LONGEST_S

PARTITION_REGEX = "hoodie.compaction.partition.path.regex"
_MB = 1024 * 1024
COMPACTED_PARTITIONS = "lakehouse.compaction.partitions"
TRIGGERS = ("NUM_COMMITS", "NUM_COMMITS_AFTER_LAST_REQUEST", "TIME_ELAPSED", "NUM_AND_TIME", "NUM_OR_TIME")
STRATEGIES = (
    "LogFileSizeBased",
    "LogFileNumBased",
    "BoundedIO",
    "UnBounded",
    "DayBased",
    "BoundedPartitionAware",
    "UnBoundedPartitionAware",
    "PartitionRegexBased",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When a merge-on-read table is compacted, and which file groups a plan selects."""

    max_delta_commits: int = option(
        "hoodie.compact.inline.max.delta.commits", 5, "Number of delta commits after which a compaction is due."
    )
    max_delta_seconds: int = option(
        "hoodie.compact.inline.max.delta.seconds",
        3600,
        "Number of seconds since the last compaction after which the next one is due.",
        most=LONGEST_S,
    )
    trigger: str = option(
        "hoodie.compact.inline.trigger.strategy",
        "NUM_COMMITS",
        "What makes a compaction due: delta commits since the last completed (or requested) one, or elapsed time.",
        choices=TRIGGERS,
    )
    strategy: str = option(
        "hoodie.compaction.strategy",
        "LogFileSizeBased",
        f"Which file groups a plan selects: {', '.join(STRATEGIES)}. Several, comma separated, apply in this order.",
    )
    target_io_mb: int = option(
        "hoodie.compaction.target.io",
        512_000,
        "Bounded strategies: the plan ends with the file group that reaches this many MB of I/O.",
        most=LARGEST_LONG >> 20,
    )
    log_bytes_threshold: int = option(
        "hoodie.compaction.logfile.size.threshold",
        0,
        "LogFileSizeBased: minimum bytes of log files for a file group to be selected.",
    )
    log_files_threshold: int = option(
        "hoodie.compaction.logfile.num.threshold",
        0,
        "LogFileNumBased: minimum number of log files for a file group to be selected.",
    )
    target_partitions: int = option(
        "hoodie.compaction.daybased.target.partitions",
        10,
        "DayBased: number of newest partitions to compact. PartitionAware strategies: days before now.",
    )
    partition_regex: str = option(
        PARTITION_REGEX, "", "PartitionRegexBased: pattern that must be found in the partition path."
    )
    partitions: str = option(
        COMPACTED_PARTITIONS, "", "Paths of the partitions to compact, comma separated; default all."
    )
    log_blocks_threshold: int = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        "Log compaction: minimum number of log files for a file group to be selected.",
    )

    def __post_init__(self) -> None:
        """Replace Hudi's class names by short names; raise UserError for an unknown strategy or a wrong pattern."""
        names = [_strategy(name.strip()) for name in self.strategy.split(",")]
        object.__setattr__(self, "strategy", ",".join(names))
        check_pattern(PARTITION_REGEX, self.partition_regex)
        if "PartitionRegexBased" in names and not self.partition_regex:
            raise SettingError(
                "option hoodie.compaction.strategy=PartitionRegexBased needs hoodie.compaction.partition.path.regex",
                setting="hoodie.compaction.strategy",
            )

    @property
    def selected_partitions(self) -> tuple[str, ...]:
        """The paths of the selected partitions; empty for all."""
        return tuple(name.strip().strip("/") for name in self.partitions.split(",") if name.strip())

    @property
    def strategies(self) -> tuple[str, ...]:
        """The short names of the strategies, in the order in which they apply."""
        return tuple(self.strategy.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """How log files of merge-on-read tables are written."""

    max_file_bytes: int = option("hoodie.logfile.max.size", 1024 * _MB, "Maximum size of a log file, in bytes.")
    block_format: str = option(
        "hoodie.logfile.data.block.format",
        "parquet",
        "Format of data blocks in log files. Avro blocks can be read but are not written.",
        choices=("parquet",),
    )
    bucket_inserts: str = option(
        "lakehouse.bucket.inserts",
        "base",
        "Bucket index of merge-on-read tables: whether a new bucket starts with a base file or a log file.",
        choices=("base", "log"),
    )


def _strategy(name: str) -> str:
    short = name.rpartition(".")[2].removesuffix("CompactionStrategy")
    for strategy in STRATEGIES:
        if strategy.lower() == short.lower():
            return strategy
    raise SettingError(
        f"option hoodie.compaction.strategy: {name!r} is not one of {', '.join(STRATEGIES)}."
        f"{nearest(short, STRATEGIES)}",
        setting="hoodie.compaction.strategy",
    )
