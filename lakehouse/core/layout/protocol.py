"""The protocol of a table layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from lakehouse.core.format.file_names import LogMarker
from lakehouse.core.format.log.delete_block import DeletedKeys
from lakehouse.core.format.metadata.schema import RecordSchema
from lakehouse.model.commit import CommitMetadata, RollbackPlan
from lakehouse.model.instant import Instant
from lakehouse.model.partition_kind import PartitionKind


class TableLayout(Protocol):
    """The behaviour of a table version. Layouts are equal if their versions are; they are small and picklable."""

    @property
    def version(self) -> int:
        """The table version: `hoodie.table.version`."""

    @property
    def timeline_layout(self) -> int:
        """The layout of the timeline: `hoodie.timeline.layout.version`."""

    @property
    def readers(self) -> tuple[str, ...]:
        """Engines that read tables of the version, by their documentation or by tests (docs/reference/readers.md)."""

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
    def writes_logs(self) -> bool:
        """Whether this package writes merge-on-read tables of the version."""

    @property
    def stores_definitions(self) -> bool:
        """Whether all writers of the version store the definitions of indexes.

        Otherwise the indexed columns are those that have records, and other writers may leave out records of an index
        that is being built while they write.
        """

    @property
    def index_kinds(self) -> frozenset[PartitionKind]:
        """The kinds of index partitions that writers keep in this version."""

    @property
    def archives(self) -> bool:
        """Whether this package archives timelines of the version."""

    @property
    def stores_partition_types(self) -> bool:
        """Whether properties store the type of each partition column of a CUSTOM key generator."""

    @property
    def log_marker(self) -> LogMarker:
        """The marker kind of log files and change logs."""

    @property
    def appends_to_logs(self) -> bool:
        """Whether a later commit may append a block to a log file, so that a log file grows."""

    @property
    def has_clustering_action(self) -> bool:
        """Whether pending clusterings have an action of their own. Otherwise they are replacecommits with a plan."""

    @property
    def names_logs_by_slice(self) -> bool:
        """Whether the name of a log file contains the base instant of its slice, not the instant of its commit.

        Then a log file cannot be deleted together with its commit, and the writes of a file group must be in order.
        """

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
    def has_merge_modes(self) -> bool:
        """Whether a table stores its merge mode. Otherwise the payload class is the only property of the merge."""

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

    def stored_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties of a new table, with the names that releases with this version write and read.

        `properties` have the names of Hudi 1.x. Raises UnsupportedError for a table that those releases would misread.
        """

    def timeline_folder(self, timeline_path: str) -> str:
        """Return the folder of the timeline, relative to the table; `timeline_path` is `hoodie.timeline.path`."""

    def instant_name(self, instant: Instant) -> str:
        """Return the file name of an instant.

        Raises CorruptTableError for an instant that has no file, or without the completion time that its file name
        needs.
        """

    def stored_action(self, action: str) -> str:
        """Return the name of a pending action in plans of rollbacks and restores."""

    def encode_commit(self, metadata: CommitMetadata, *, replace: bool = False) -> bytes:
        """Return the content of a completed commit, or of a completed replacecommit if `replace` is set.

        Raises CorruptTableError if `metadata` names replaced file groups but `replace` is not set.
        """

    def encode_inflight(self, metadata: CommitMetadata) -> bytes:
        """Return the content of an inflight write: its operation and, if available, its workload profile."""

    def decode_deletes(self, content: bytes, ordering: Sequence[pa.DataType]) -> DeletedKeys:
        """Return the entries of a delete block in a log file; `ordering` has the types of the ordering columns.

        Raises UnsupportedError for a block of Java objects, where releases that write the version write none.
        """

    def decode_rollback_plan(self, data: bytes, *, base_path: str) -> RollbackPlan:
        """Decode a rollback plan of the table at `base_path`.

        Raises CorruptTableError for a path outside its partition. Raises UnsupportedError for a plan that this package
        cannot execute in tables of the version.
        """
