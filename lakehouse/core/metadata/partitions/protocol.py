"""The protocol of an index partition: which records an action of the data table adds and deletes (MDT-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.env import Env
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.format.hfile.entries import Entries
from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.staged import StagedLog
from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.files import FileSlice
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

#: Records in the form of an HFile: the key and the encoded value.
ENTRIES = pa.schema([("key", pa.binary()), ("value", pa.binary())])
#: Record keys that are deleted.
KEYS = pa.binary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The definition of an index in `.hoodie/.index_defs/index.json` (MDT-6)."""

    index_type: str
    function: str = ""
    source_fields: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    version: str = "V1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The changes of one index partition by one action. Keys may be in any order; a key occurs once.

    Attributes:
        entries: New records: key, value. A mapping is allowed if the hash of a key selects its file group (`shard_of`).
        rows: The decoded `entries`, ascending by key, for readers of the next commit; None if they were not decoded.
        deletes: Keys of deleted records.
        new_groups: File ids of file groups that the action creates, as in a partitioned record index.
        definition: The changed index definition, for example with a new column; None if it does not change.
        staged: Log files that tasks prepared; their records are not in `entries`.
    """

    entries: Entries = field(default_factory=ENTRIES.empty_table)
    rows: pa.Table | None = None
    deletes: pa.Array = field(default_factory=lambda: pa.array([], KEYS))
    new_groups: tuple[str, ...] = ()
    definition: Definition | None = None
    staged: tuple[StagedLog, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCommit:
    """The inputs of index partitions for one commit to the metadata table. It exists only under the table lock.

    Attributes:
        env: The environment of the data table.
        config: The configuration of the data table.
        instant: The requested time of the action.
        change: The changes of the action.
        definitions: The index definitions by name of the index partition.
        groups: The sorted file ids per listed index partition; the position is the shard.
        policies: The options of the table.
        schema: The data columns after the action; None if the commit contains no schema.
        previous_schema: Returns the data columns before the action, or None if there is no earlier write.
        reader: Returns a reader of the metadata table as it is before this commit (`MetadataTable`).
        shared: Values that several partitions derive from the change, computed once.
        is_last: No write with a smaller requested time is pending. Such a write could complete later, and its records
            would be merged below the records of this action, because requested times determine the order.
        is_building: The partition is being built. The base files of the build may contain the files of this action, and
            its records are merged over them; `is_last` is false.
        live_files: Returns the files in the newest slices of some partitions after the action, with the columns
            `partition` and `name`, or None if they cannot be determined.
        stored_ranges: Returns the `column_stats` rows for some columns of some files, or None if `column_stats` is
            damaged.
    """

    env: Env
    config: TableConfig
    instant: str
    change: MetadataChange
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policies: Policies = field(default_factory=Policies)
    schema: pa.Schema | None = None
    previous_schema: Callable[[], pa.Schema | None] = lambda: None
    reader: Callable[[], Any] = lambda: None
    shared: dict[str, Any] = field(default_factory=dict)
    is_last: bool = True
    is_building: bool = False
    live_files: Callable[[Sequence[str]], pa.Table | None] = lambda partitions: None
    stored_ranges: Callable[[Sequence[str], pa.Table], pa.Table | None] = lambda columns, files: None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The committed files of a table from which an index partition is built.

    Attributes:
        env: The environment of the data table.
        config: The configuration of the data table.
        instant: The instant of the build on the metadata timeline.
        files: All files of completed instants: partition, name, size_bytes.
        newest: The files of the newest slices, a part of `files`.
        described: The files with statistics and bloom filters: all of `files`, so that reads of older versions use them
            as well; None means `newest`.
        slices: The newest slices.
        read: The settings for reading their rows; None for a table without commits.
        engine: Runs the tasks that read rows; None means this process.
        schema: The schema of the data columns; None if the table has no commit.
        definitions: The index definitions by name of the index partition.
        policies: The options of the table, such as declared columns and numbers of file groups.
        left_out: Paths of leftover files from failed writes, which are not in `files`.
        undecided: Paths in `files` for which it is unknown whether they were committed.
    """

    env: Env
    config: TableConfig
    instant: str
    files: pa.Table
    newest: pa.Table
    described: pa.Table | None = None
    slices: Sequence[FileSlice] = ()
    read: SliceContext | None = None
    engine: Engine | None = None
    schema: pa.Schema | None = None
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    policies: Policies = field(default_factory=Policies)
    left_out: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


@runtime_checkable
class GroupedBuild(Protocol):
    """An index partition that builds one file group after the other, because its records grow with the rows."""

    def build_groups(self, name: str, table: TableFiles, groups: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yield the ids of file groups with their records: key, value. Groups without records are left out."""
        ...


class IndexPartition(Protocol):
    """One kind of index partition. Implementations have no state; `name` is the partition, as in the property."""

    @property
    def kind(self) -> PartitionKind:
        """The kind of the partitions."""
        ...

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        """Return why this package cannot maintain the partition, such as an unknown function, or None if it can."""
        ...

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        """Return the partitions of this kind that a new table gets."""
        ...

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        """Return the definition that a build stores; None for partitions without definition."""
        ...

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        """Return the file ids of the groups that a build creates, in the order of shards."""
        ...

    def build(self, name: str, table: TableFiles) -> pa.Table:
        """Return the records of the committed files: key, value."""
        ...

    def update(self, name: str, commit: MetadataCommit) -> Update:
        """Return the records that the action adds and deletes."""
        ...

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        """Return the position in `groups` of each key."""
        ...
