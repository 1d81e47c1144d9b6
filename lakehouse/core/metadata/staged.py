"""Records of index partitions that tasks prepare before the table lock is taken (MDT-8).

A record index grows with the rows of a commit, and bloom filters with its files. Tasks encode the records as log files
in the staging directory. Under the lock the files are copied to their place in pieces, so the memory of the driver does
not grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakehouse.core.files.keys.changed_keys import RecordLocations
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.metadata.write.files import ascending, log_bytes, log_headers
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import RetryableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice
from lakehouse.spec.options.indexing import IndexingPolicy

#: Runs a function with an attempt once per task, and returns the results in order.
Run = Callable[[Callable[[Attempt, Any], Any], Sequence[Any]], list[Any]]


class StagedRecordsError(RetryableError):
    """The staged records of an index partition are missing, or were staged for different file groups.

    Stage them again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLog:
    """A complete log file for one file group of an index partition.

    Attributes:
        file_id: The file group of the metadata table.
        path: Path of the log file, relative to the data table.
        size_bytes: Its size.
        records: The number of records in it.
        deletes: The number of deleted keys in it.
    """

    file_id: str
    path: str
    size_bytes: int
    records: int
    deletes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStage:
    """The settings of the tasks that write the staged log files of one index partition.

    Attributes:
        storage: The storage of the table.
        directory: The directory for the files, relative to the table.
        partition: The index partition.
        instant: The requested time of the action.
        created_ms: The creation time that is stored in the files.
        groups: The file groups of the partition; the position of a group is its shard.
        schema: The Avro schema of the records in the files. The records are not statistics, so their bytes do not
            depend on it.
    """

    storage: Storage
    directory: str
    partition: str
    instant: str
    created_ms: int
    groups: tuple[str, ...]
    schema: str

    def write(
        self, attempt: Attempt, number: int, entries: pa.Table, deletes: pa.Array | None = None
    ) -> StagedLog | None:
        """Write the log file of the file group at this position, with records (key, value) and deleted keys.

        Return None if there are none.
        """
        gone = pa.array([], pa.binary()) if deletes is None else deletes.cast(pa.binary())
        if not entries.num_rows and not len(gone):
            return None
        headers = log_headers(self.instant, self.schema)
        data = log_bytes(self.partition, headers, ascending(entries), gone, self.created_ms)
        file_id = self.groups[number]
        path = f"{self.directory}/{file_id}-{attempt.token}.log"
        self.storage.put(path, data)
        return StagedLog(file_id=file_id, path=path, size_bytes=len(data), records=entries.num_rows, deletes=len(gone))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedUpdate:
    """The prepared log files of one index partition.

    Attributes:
        groups: The file groups of the partition for which the files were staged; their number determines the
            distribution of keys.
        logs: The log files.
        new_groups: The ids of file groups that the action creates.
        statistics: For an index on an expression, the statistics of the new files: one row per file.
        source: The definition for which the records were staged, as a string.
        has_new_keys: For a record index, whether all keys that it gets were compared with its records, and are new.
    """

    groups: tuple[str, ...]
    logs: tuple[StagedLog, ...] = ()
    new_groups: tuple[str, ...] = ()
    statistics: pa.Table | None = None
    source: str = ""
    has_new_keys: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the log files, relative to the data table."""
        return tuple(log.path for log in self.logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The inputs for preparing an index partition for one action.

    Attributes:
        storage: The storage of the table.
        instant: The requested time of the action.
        instant_ms: The same time in milliseconds since 1970.
        created_ms: The creation time that is stored in the files.
        commit: The commit that the action will complete.
        replaced: Returns the newest slices of the file groups that the action replaces.
        stored: Returns the newest slices of the file groups to which the action appends, before the action; None if
            the write statistics name all their files.
        read: The settings for reading slices. They show the blocks of the action.
        groups: The file groups of the partition.
        is_partitioned: Whether each partition of the table has its own record index.
        is_shared: Whether other writers append to the same file groups concurrently.
        policy: The options of indexes.
        run: Runs a function once per task, near the data if the work is large.
        directory: The directory for the files of tasks, relative to the table.
        schema: The Avro schema of the records in the files.
        locations: The record index before the action, with which added keys are compared; None to compare none.
    """

    storage: Storage
    instant: str
    instant_ms: int
    created_ms: int
    commit: CommitMetadata
    replaced: Callable[[], Sequence[FileSlice]]
    read: SliceContext
    groups: tuple[str, ...]
    is_partitioned: bool
    run: Run
    directory: str
    schema: str
    policy: IndexingPolicy = field(default_factory=IndexingPolicy)
    is_shared: bool = False
    stored: Callable[[], Sequence[FileSlice]] | None = None
    locations: RecordLocations | None = None

    def logs(self, partition: str, groups: tuple[str, ...] | None = None) -> LogStage:
        """Return the settings for tasks that write log files; `groups` replace the groups of the partition."""
        return LogStage(
            storage=self.storage,
            directory=self.directory,
            partition=partition,
            instant=self.instant,
            created_ms=self.created_ms,
            groups=self.groups if groups is None else groups,
            schema=self.schema,
        )
