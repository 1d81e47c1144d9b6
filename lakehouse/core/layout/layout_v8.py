"""Table versions 8 (Hudi 1.0) and 9 (Hudi 1.1 and later): instants with completion times, commits in Avro."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.format.file_names import LogMarker, pending_name, require_instant_time
from lakehouse.core.format.log.delete_block import DeletedKeys, decode_deletes
from lakehouse.core.format.metadata.schema import CURRENT, HUDI_1_0, RecordSchema
from lakehouse.core.format.timeline.commit_metadata import encode_avro_commit
from lakehouse.core.format.timeline.rollback import decode_rollback_plan
from lakehouse.core.layout.layout_v6 import READERS_OF_HUDI_1_1
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import CommitMetadata, RollbackPlan
from lakehouse.model.instant import Instant, State
from lakehouse.model.partition_kind import PartitionKind


@dataclass(frozen=True, slots=True)
class LayoutV8:
    """The layout of table version 8 (see TableLayout)."""

    version: int = 8
    timeline_layout: int = 2
    readers: tuple[str, ...] = ("Apache Hudi 1.0", *READERS_OF_HUDI_1_1)
    is_writable: bool = True
    has_completion_times: bool = True
    writes_logs: bool = True
    stores_definitions: bool = True
    index_kinds: frozenset[PartitionKind] = frozenset(PartitionKind)
    archives: bool = True
    stores_partition_types: bool = True
    log_marker: LogMarker = "CREATE"
    appends_to_logs: bool = False
    has_clustering_action: bool = True
    names_logs_by_slice: bool = False
    prefixes_single_key: bool = False
    has_merge_properties: bool = False
    prefers_strategy: bool = True
    has_merge_modes: bool = True
    has_merge_strategies: bool = True
    ordering_property: str = "hoodie.table.precombine.field"
    index_version: str = "V1"

    @property
    def metadata_schema(self) -> RecordSchema:
        """The records without types of values."""
        return HUDI_1_0

    def stored_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties unchanged."""
        return dict(properties)

    def timeline_folder(self, timeline_path: str) -> str:
        """Return the folder of the timeline."""
        return f".hoodie/{timeline_path}"

    def instant_name(self, instant: Instant) -> str:
        """Return the file name of an instant; for a completed instant it contains the completion time."""
        require_instant_time(instant)
        if instant.state is not State.COMPLETED:
            return pending_name(instant, instant.action)
        action = instant.action.completed_as
        if instant.completed is None:
            raise CorruptTableError(
                f"completed instant {instant.requested}.{action} has no completion time, which its name in layout 2 "
                "needs",
                requested=instant.requested,
                action=str(action),
            )
        return f"{instant.requested}_{instant.completed}.{action}"

    def stored_action(self, action: str) -> str:
        """Return the action itself."""
        return action

    def encode_commit(self, metadata: CommitMetadata, *, replace: bool = False) -> bytes:
        """Return the content of a completed commit or replacecommit, in Avro."""
        return encode_avro_commit(metadata, replace=replace)

    def encode_inflight(self, metadata: CommitMetadata) -> bytes:
        """Return the content of an inflight write, in Avro."""
        return self.encode_commit(metadata)

    def decode_deletes(self, content: bytes, ordering: Sequence[pa.DataType]) -> DeletedKeys:
        """Return the entries of a delete block, which are Avro."""
        return decode_deletes(content, ordering)

    def decode_rollback_plan(self, data: bytes, *, base_path: str) -> RollbackPlan:
        """Decode a rollback plan; log files are files to delete, in whichever list they are."""
        return decode_rollback_plan(data, base_path=base_path)


@dataclass(frozen=True, slots=True)
class LayoutV9(LayoutV8):
    """The layout of table version 9: as version 8, with a property for each setting of the merge."""

    version: int = 9
    readers: tuple[str, ...] = READERS_OF_HUDI_1_1
    prefixes_single_key: bool = True
    has_merge_properties: bool = True
    prefers_strategy: bool = False
    ordering_property: str = "hoodie.table.ordering.fields"
    index_version: str = "V2"

    @property
    def metadata_schema(self) -> RecordSchema:
        """The records with types of values."""
        return CURRENT

    def stored_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties with the table format, which version 9 stores."""
        return {**properties, "hoodie.table.format": "native"}
