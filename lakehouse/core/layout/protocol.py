"""The protocol of a table layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lakehouse.core.format.metadata.schema import RecordSchema
from lakehouse.model.commit import CommitMetadata, RollbackPlan
from lakehouse.model.instant import Instant


class TableLayout(Protocol):
    """The behaviour of a table version. Layouts are equal if their versions are; they are small and picklable."""

    @property
    def version(self) -> int:
        """The table version: `hoodie.table.version`."""

    @property
    def timeline_layout(self) -> int:
        """The layout of the timeline: `hoodie.timeline.layout.version`."""

    @property
    def is_writable(self) -> bool:
        """Whether this package writes and services tables of the version."""

    @property
    def has_completion_times(self) -> bool:
        """Whether names of completed instants contain the completion time, which then cuts the file slices.

        The archive of such a timeline is read, too. Without completion times, a log file has the instant of its base
        file in its name.
        """

    @property
    def appends_to_logs(self) -> bool:
        """Whether a later commit may append a block to a log file, so that a log file grows."""

    @property
    def prefixes_single_key(self) -> bool:
        """Whether the record key of a complex key generator with one field is `field:value`."""

    @property
    def has_merge_properties(self) -> bool:
        """Whether each merge setting has its own property. Otherwise a payload class represents all of them."""

    @property
    def prefers_strategy(self) -> bool:
        """Whether a merge strategy id decides before the payload class if no merge mode is declared."""

    @property
    def has_merge_strategies(self) -> bool:
        """Whether a custom merger is declared by a strategy id, so that the payload class has no effect."""

    @property
    def ordering_property(self) -> str:
        """The property with the ordering columns of a new table."""

    @property
    def index_version(self) -> str:
        """The version with which new indexes are defined, such as V2."""

    @property
    def metadata_schema(self) -> RecordSchema:
        """The records of the metadata table that the first release with this table version writes."""

    @property
    def new_table_properties(self) -> Mapping[str, str]:
        """The properties of a new table that only depend on the version."""

    def timeline_folder(self, timeline_path: str) -> str:
        """Return the folder of the timeline, relative to the table; `timeline_path` is `hoodie.timeline.path`."""

    def instant_name(self, instant: Instant) -> str:
        """Return the file name of an instant.

        Raises CorruptTableError for an instant that has no file, or without the completion time that its file name
        needs.
        """

    def encode_commit(self, metadata: CommitMetadata, *, replace: bool = False) -> bytes:
        """Return the content of a completed commit, or of a completed replacecommit if `replace` is set.

        Raises CorruptTableError if `metadata` names replaced file groups but `replace` is not set.
        """

    def encode_inflight(self, metadata: CommitMetadata) -> bytes:
        """Return the content of an inflight write: its operation and, if available, its workload profile."""

    def decode_rollback_plan(self, data: bytes, *, base_path: str) -> RollbackPlan:
        """Decode a rollback plan of the table at `base_path`.

        Raises CorruptTableError for a path outside its partition. Raises UnsupportedError for a plan that this package
        cannot execute in tables of the version.
        """
