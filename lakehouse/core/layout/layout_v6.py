"""Table version 6, which Hudi 0.14 and 0.15 write: instants in `.hoodie`, commits in JSON, log files that grow.

The metadata table has the index partitions of Hudi 0.15. Its own actions have the time of an action and a suffix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.format.file_names import LogMarker, pending_name, require_instant_time
from lakehouse.core.format.log.delete_block import DeletedKeys
from lakehouse.core.format.log.delete_objects import decode_any_deletes
from lakehouse.core.format.metadata.schema import HUDI_1_0, RecordSchema
from lakehouse.core.format.timeline.commit_metadata import encode_json_commit
from lakehouse.core.format.timeline.rollback import decode_slice_rollback_plan
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import CommitMetadata, RollbackPlan
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.partition_kind import PartitionKind

#: Engines that read each version of the layouts.
READERS_OF_HUDI_1_1 = (
    "Apache Hudi 1.1",
    "Apache Hudi 1.2",
    "hudi-rs 0.5",
    "lakehouse",
    "DuckDB through Arrow",
    "Polars through Arrow",
    "Flink with Hudi 1.1 or newer",
)
_GENERATOR_TYPE = "hoodie.table.keygenerator.type"
#: Properties that Hudi 0.15 does not read. With `timeline.path` Hudi 1.2 is not affected either.
_SINCE_HUDI_1 = frozenset(
    {_GENERATOR_TYPE, "hoodie.table.initial.version", "hoodie.timeline.path", "hoodie.timeline.history.path"}
)
_GENERATOR_CLASSES = {
    "SIMPLE": "SimpleKeyGenerator",
    "COMPLEX": "ComplexKeyGenerator",
    "TIMESTAMP": "TimestampBasedKeyGenerator",
    "NON_PARTITION": "NonpartitionedKeyGenerator",
}


#: The index partitions that Hudi 0.15 has.
_INDEX_KINDS = frozenset(
    {PartitionKind.FILES, PartitionKind.COLUMN_STATS, PartitionKind.BLOOM_FILTERS, PartitionKind.RECORD_INDEX}
)


@dataclass(frozen=True, slots=True)
class LayoutV6:
    """The layout of table version 6 (see TableLayout)."""

    version: int = 6
    timeline_layout: int = 1
    readers: tuple[str, ...] = (
        "Apache Hudi 0.14",
        "Apache Hudi 0.15",
        "Apache Hudi 1.0",
        *READERS_OF_HUDI_1_1,
        "Trino",
        "Amazon Athena",
        "Apache Doris",
    )
    is_writable: bool = True
    has_completion_times: bool = False
    writes_logs: bool = True
    stores_definitions: bool = False
    index_kinds: frozenset[PartitionKind] = _INDEX_KINDS
    archives: bool = True
    stores_partition_types: bool = False
    log_marker: LogMarker = "APPEND"
    appends_to_logs: bool = True
    has_clustering_action: bool = False
    names_logs_by_slice: bool = True
    prefixes_single_key: bool = False
    has_merge_properties: bool = False
    prefers_strategy: bool = False
    has_merge_modes: bool = False
    has_merge_strategies: bool = False
    ordering_property: str = "hoodie.table.precombine.field"
    index_version: str = "V1"

    @property
    def metadata_schema(self) -> RecordSchema:
        """The records of the metadata table; older releases wrote a subset."""
        return HUDI_1_0

    def stored_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties without those of Hudi 1.x, and with the key generator as a class.

        Raises UnsupportedError for a CUSTOM key generator, because the types of its columns are not stored.
        """
        stored = {key: value for key, value in properties.items() if key not in _SINCE_HUDI_1}
        generator = properties.get(_GENERATOR_TYPE, "")
        if generator not in _GENERATOR_CLASSES:
            raise UnsupportedError(
                f"key generator {generator}: a table of version {self.version} does not store the types of its "
                "partition columns, so other writers would build other partition paths; partition by one TIMESTAMP "
                "column and a record key of one column, or by plain columns, or create a table of version 9"
            )
        stored["hoodie.table.keygenerator.class"] = f"org.apache.hudi.keygen.{_GENERATOR_CLASSES[generator]}"
        return {**stored, "hoodie.table.base.file.format": "PARQUET", "hoodie.populate.meta.fields": "true"}

    def timeline_folder(self, timeline_path: str) -> str:
        """Return the folder that contains all files of Hudi for the table; `timeline_path` has no effect."""
        return ".hoodie"

    def instant_name(self, instant: Instant) -> str:
        """Return the file name of an instant; a clustering plan is a replacecommit."""
        require_instant_time(instant)
        if instant.state is State.COMPLETED:
            return f"{instant.requested}.{instant.action.completed_as}"
        action = Action.REPLACECOMMIT if instant.action is Action.CLUSTERING else instant.action
        return pending_name(instant, action)

    def stored_action(self, action: str) -> str:
        """Return the action; a clustering is a replacecommit."""
        return Action.REPLACECOMMIT.value if action == Action.CLUSTERING else action

    def encode_commit(self, metadata: CommitMetadata, *, replace: bool = False) -> bytes:
        """Return the content of a completed commit or replacecommit, in JSON."""
        return encode_json_commit(metadata, replace=replace)

    def encode_inflight(self, metadata: CommitMetadata) -> bytes:
        """Return the content of an inflight write, in JSON."""
        return self.encode_commit(metadata)

    def decode_deletes(self, content: bytes, ordering: Sequence[pa.DataType]) -> DeletedKeys:
        """Return the entries of a delete block; releases before 0.14 wrote Java objects, serialized by Kryo."""
        return decode_any_deletes(content, ordering)

    def decode_rollback_plan(self, data: bytes, *, base_path: str) -> RollbackPlan:
        """Decode a rollback plan; rows in log files are rolled back by command blocks."""
        return decode_slice_rollback_plan(data, base_path=base_path)
