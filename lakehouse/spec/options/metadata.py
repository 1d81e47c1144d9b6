"""Options of the metadata table: which index partitions a table has, and which columns have statistics."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option

METADATA_ENABLE = "hoodie.metadata.enable"
STATISTICS_COLUMNS = "hoodie.metadata.index.column.stats.column.list"
COMPACTION_COMMITS = "hoodie.metadata.compact.max.delta.commits"
LOG_COMPACTION_BLOCKS = "hoodie.metadata.log.compaction.blocks.threshold"
STATISTICS_LIMIT = "hoodie.metadata.index.column.stats.max.columns.to.index"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPolicy:
    """The metadata table: file listings, column statistics and indexes."""

    enable: bool = option(
        METADATA_ENABLE,
        True,
        "New tables have a metadata table, and reads use the one of a table. Writes maintain an existing one in any "
        "case.",
    )
    column_stats: bool = option(
        "hoodie.metadata.index.column.stats.enable",
        True,
        "New tables have column statistics per file and, if they are partitioned, per partition.",
    )
    columns: str = option(
        STATISTICS_COLUMNS,
        "",
        "Columns with statistics, separated by commas, nested fields by path such as `address.city`; default: the "
        "first columns of the table.",
    )
    max_columns: int = option(
        STATISTICS_LIMIT, 32, "Columns that have statistics if none are listed: the first ones of a supported type."
    )
    column_stats_groups: int = option(
        "hoodie.metadata.index.column.stats.file.group.count",
        2,
        "Number of file groups of a new table's column statistics.",
    )
    partition_stats_groups: int = option(
        "hoodie.metadata.index.partition.stats.file.group.count",
        1,
        "Number of file groups of a new table's partition statistics.",
    )
    auto_delete: bool = option(
        "hoodie.metadata.auto.delete.partitions",
        False,
        "A write drops an index partition that this package cannot maintain; otherwise such a write is refused. Hudi's "
        "default is true.",
    )

    compaction_delta_commits: int = option(
        COMPACTION_COMMITS,
        10,
        "Number of delta commits after which a write compacts the metadata table.",
    )
    log_compaction: bool = option(
        "hoodie.metadata.log.compaction.enable",
        False,
        "Writes merge log files of the metadata table between two compactions.",
    )
    log_compaction_blocks: int = option(
        LOG_COMPACTION_BLOCKS,
        5,
        "Number of log files of a metadata file group from which a log compaction merges them.",
    )
    fail_on_service_failure: bool = option(
        "hoodie.metadata.write.fail.on.table.service.failures",
        True,
        "A write fails if a compaction, clean or archive of the metadata table fails; otherwise the write logs a "
        "warning and continues.",
    )

    def __post_init__(self) -> None:
        """Raise SettingError for a number of columns, file groups or commits below 1."""
        for key, value in (
            (STATISTICS_LIMIT, self.max_columns),
            ("hoodie.metadata.index.column.stats.file.group.count", self.column_stats_groups),
            ("hoodie.metadata.index.partition.stats.file.group.count", self.partition_stats_groups),
            (COMPACTION_COMMITS, self.compaction_delta_commits),
            (LOG_COMPACTION_BLOCKS, self.log_compaction_blocks),
        ):
            if value < 1:
                raise SettingError(f"option {key}={value}: must be at least 1", setting=key)

    @property
    def declared_columns(self) -> tuple[str, ...]:
        """The listed columns."""
        return tuple(name.strip() for name in self.columns.split(",") if name.strip())
