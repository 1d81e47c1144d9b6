"""Table version 6, which Hudi 0.14 and 0.15 write: instants in `.hoodie`, commits in JSON, log files that grow.

Only reading is implemented: `is_writable` is false, and every write and service refuses such a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.core.format.file_names import pending_name, require_instant_time
from lakehouse.core.format.metadata.schema import HUDI_1_0, RecordSchema
from lakehouse.core.format.timeline.commit_metadata import encode_json_commit
from lakehouse.core.format.timeline.rollback import decode_rollback_plan, logs_to_roll_back
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import CommitMetadata, RollbackPlan
from lakehouse.model.instant import Action, Instant, State


@dataclass(frozen=True, slots=True)
class LayoutV6:
    """The layout of table version 6 (see TableLayout)."""

    version: int = 6
    timeline_layout: int = 1
    is_writable: bool = False
    has_completion_times: bool = False
    appends_to_logs: bool = True
    prefixes_single_key: bool = False
    has_merge_properties: bool = False
    prefers_strategy: bool = False
    has_merge_strategies: bool = False
    ordering_property: str = "hoodie.table.precombine.field"
    index_version: str = "V1"

    @property
    def metadata_schema(self) -> RecordSchema:
        """The records of the metadata table; older releases wrote a subset."""
        return HUDI_1_0

    @property
    def new_table_properties(self) -> Mapping[str, str]:
        """No property depends on the version alone."""
        return {}

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

    def encode_commit(self, metadata: CommitMetadata, *, replace: bool = False) -> bytes:
        """Return the content of a completed commit or replacecommit, in JSON."""
        return encode_json_commit(metadata, replace=replace)

    def encode_inflight(self, metadata: CommitMetadata) -> bytes:
        """Return the content of an inflight write, in JSON."""
        return self.encode_commit(metadata)

    def decode_rollback_plan(self, data: bytes, *, base_path: str) -> RollbackPlan:
        """Decode a rollback plan; one that rolls back rows appended to an older log file is refused."""
        plan = decode_rollback_plan(data, base_path=base_path)
        logs = logs_to_roll_back(data, base_path=base_path)
        if logs:
            raise UnsupportedError(
                f"the rollback of {plan.target} needs rollback blocks in log files of table version {self.version}; "
                "run it with Hudi",
                logs=logs,
            )
        return plan
