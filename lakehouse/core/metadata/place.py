"""The location of a table's metadata table, and its configuration (MDT-2).

.hoodie/metadata/.hoodie/hoodie.properties   .hoodie/timeline   <index partition>/<files>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakehouse.core.env import Env
from lakehouse.core.format.properties import table_checksum
from lakehouse.core.state.table_config import TableConfig, parse_table_config
from lakehouse.core.storage.sub_storage import SubStorage

#: The directory of the metadata table, relative to the table.
METADATA = ".hoodie/metadata"
#: Properties of the data table that list the usable index partitions, and the partitions that are being built.
PARTITIONS_KEY = "hoodie.table.metadata.partitions"
INFLIGHT_KEY = "hoodie.table.metadata.partitions.inflight"
#: Property of the data table: the path of the index definitions.
DEFINITIONS_KEY = "hoodie.table.index.defs.path"
DEFINITIONS_PATH = ".hoodie/.index_defs/index.json"
#: Extra metadata of commits, and property of the data table, that prove unique keys (see `load.commits`).
UNIQUE_KEYS = "lakehouse.unique_keys"
#: End of the property for a table without completion times, whose newest write is the one that was requested last.
BY_REQUEST = " by_request"
#: Instant times of initialisation begin with these digits (MDT-2).
INIT_PREFIX = "00000000000000"
#: Number of digits in an instant time. In version 6 own actions of a metadata table repeat a time and add
#: three more digits: for a compaction, a clean, and the first build of an index partition.
TIME_DIGITS = 17
COMPACTION_SUFFIX, CLEAN_SUFFIX, FIRST_BUILD = "001", "002", 10


#: Properties of metadata tables in all versions.
_PROPERTIES = {
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.table.base.file.format": "HFILE",
    "hoodie.table.recordkey.fields": "key",
    "hoodie.populate.meta.fields": "false",
    "hoodie.datasource.write.drop.partition.columns": "false",
    "hoodie.compaction.payload.class": "org.apache.hudi.metadata.HoodieMetadataPayload",
}


def metadata_env(env: Env) -> Env:
    """Return the environment of the metadata table: the same clock, timers and ids, and its own storage."""
    return replace(env, storage=SubStorage(env.storage, METADATA))


def metadata_config(config: TableConfig) -> TableConfig:
    """Return the configuration of a data table's metadata table."""
    return parse_table_config(
        {**metadata_properties(config), "hoodie.table.timeline.timezone": config.timezone}, METADATA
    )


def metadata_properties(config: TableConfig) -> dict[str, str]:
    """Return the metadata table's properties, with the names that releases with the table version write and read."""
    name = f"{config.name}_metadata"
    if not config.layout.has_completion_times:
        return {
            **_PROPERTIES,
            "hoodie.table.name": name,
            "hoodie.table.version": str(config.version),
            "hoodie.timeline.layout.version": str(config.layout.timeline_layout),
            "hoodie.archivelog.folder": "archived",
            "hoodie.table.keygenerator.class": "org.apache.hudi.metadata.HoodieTableMetadataKeyGenerator",
            "hoodie.compaction.record.merger.strategy": "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
            "hoodie.table.checksum": str(table_checksum("", name)),
        }
    return {
        **_PROPERTIES,
        "hoodie.table.name": name,
        "hoodie.table.version": str(config.version),
        "hoodie.table.initial.version": str(config.version),
        "hoodie.timeline.layout.version": str(config.layout.timeline_layout),
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        "hoodie.table.keygenerator.type": "HOODIE_TABLE_METADATA",
        "hoodie.record.merge.mode": "CUSTOM",
        "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
        "hoodie.table.checksum": str(table_checksum("", name)),
    }


def listed_partitions(properties: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the usable index partitions in properties, and the partitions that are being built."""
    return _names(properties.get(PARTITIONS_KEY)), _names(properties.get(INFLIGHT_KEY))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
