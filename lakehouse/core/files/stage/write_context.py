"""The settings of a write for its tasks: small, picklable, and the same for all tasks of one write.

# The memory budget of a task

A process runs one task at a time, and a task is in one phase at a time. A quarter of the budget is a reserve for the
batch being received, pages being read or written, footers, and fragmentation of the heap. The shares of a phase add up
to the rest:

    stage    pending rows 1/4, rows kept by combining 1/4, the same rows in the order of writing 1/4
    tag      staged keys and their hash table 3/8, stored keys being looked up 1/8, matches 1/8
    write    rows read 1/16, rows kept of them 1/16, window of incoming rows 1/16 and its pieces 1/16, rows to encode
             1/4, keys to hash and their bits 3/16, filter as read 1/4 and as it will be written 1/16
    append   a window of incoming rows 1/16, and of the whole budget: a log block before it is spilled to disk 1/16
    compact  as write for the next base file; the merged slice is read with half of the budget
    cluster  slices are merged with half of the budget, rows to be sorted 1/4; then the runs that are merged 1/4, and
             the files as in write
    bulk     rows gathered and grouped by partition 1/4, rows to encode 5/16, keys to hash 1/8, their bits for one
             file 3/16, filters 1/16

A stored file that was written with a larger budget and has more than `keys_per_file` keys may need more than its share
for the filter: twenty bytes per key while the file is read or written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.index.write_tasks import StagingLayout
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import NEWEST
from lakehouse.core.rows.absent_columns import Groups
from lakehouse.core.storage.path_limits import partition_limits
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import WaitClock
from lakehouse.model.keys import KeyConfig
from lakehouse.model.merge import MergeRule
from lakehouse.model.path_limits import PathLimits
from lakehouse.spec.options.write import WritePolicy

_MIN_ROWS = 1_024
# Minimum number of keys of a file before it is closed because filters exceed their share of memory.
MIN_KEYS_PER_FILE = 100_000
# Memory of a hash table per key in bytes, including its growth, in addition to two copies of the key.
_HASH_BYTES = 72
# Bytes per match: row, run and kind, twice during the sort.
_MATCH_BYTES = 64


def give_back() -> None:
    """Return free memory to the system. Call it after a large share was released.

    Otherwise the allocator keeps freed memory between used blocks, which adds up over time.
    """
    pa.default_memory_pool().release_unused()


@dataclass(frozen=True, slots=True)
class Budget:
    """The shares of `total_bytes`. Rows and keys have a minimum, so that a tiny budget still allows progress."""

    total_bytes: int

    @property
    def shared_bytes(self) -> int:
        """The budget without the reserve."""
        return self.total_bytes * 3 // 4

    @property
    def pending_bytes(self) -> int:
        """Incoming rows that a stage keeps before it writes or combines them."""
        return self.shared_bytes // 4

    @property
    def encode_bytes(self) -> int:
        """Rows that one file keeps before they are encoded as a row group."""
        return self.shared_bytes // 4

    @property
    def open_files_bytes(self) -> int:
        """Rows that all open files of a task keep before they are encoded."""
        return self.shared_bytes * 5 // 16

    @property
    def gathered_bytes(self) -> int:
        """Incoming rows that are grouped by partition."""
        return self.shared_bytes // 16

    @property
    def decoded_bytes(self) -> int:
        """Stored rows that are read in one step."""
        return self.shared_bytes // 16

    @property
    def hash_bytes(self) -> int:
        """Keys of one file that wait to be hashed into its filter, and the memory for hashing them."""
        return self.shared_bytes * 3 // 16

    @property
    def held_key_bytes(self) -> int:
        """Keys of all open files that wait to be hashed."""
        return self.shared_bytes // 8

    @property
    def filter_bytes(self) -> int:
        """Filters of all open files."""
        return self.shared_bytes // 16

    def window_rows(self, bytes_per_row: float) -> int:
        """The number of incoming rows with this size that are read in one step."""
        return max(int(self.shared_bytes / 16 / max(bytes_per_row, 1)), _MIN_ROWS)

    def hashed_keys(self, bytes_per_key: float) -> int:
        """The number of staged keys with this size whose hash table fits into memory."""
        return max(int(self.shared_bytes * 3 / 8 / (2 * bytes_per_key + _HASH_BYTES)), 1)

    def looked_up_keys(self, bytes_per_key: float) -> int:
        """The number of stored keys with this size that are looked up in one step."""
        return max(int(self.shared_bytes / 8 / (bytes_per_key + 16)), _MIN_ROWS)

    @property
    def matches(self) -> int:
        """The number of matches that are sorted in one step."""
        return max(self.shared_bytes // 8 // _MATCH_BYTES, _MIN_ROWS)

    def keys_per_file(self, fpp: float) -> int:
        """The number of keys at which the filter of a file with this false-positive rate reaches its share."""
        bits_per_key = -math.log(fpp) / math.log(2) ** 2
        return max(int(self.filter_bytes * 8 / bits_per_key), MIN_KEYS_PER_FILE)


#: The maximum length that a file name adds to its partition path: a log file with a temporary name has 123 bytes.
#: Hash ranges of a partition are in a metadata folder, with 80 bytes more.
_NAME_BYTES = 128
#: The length that a marker adds to the path of its file: its folder and its suffix.
_MARKER_BYTES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """The properties of a batch's rows, and the columns that they lack.

    Attributes:
        deletes_only: Whether the rows are keys to delete.
        ordered_deletes: Whether keys to delete have ordering columns, so that newer stored rows are kept.
        combine: Whether rows with the same key in the batch are combined.
        drops_repeated: Whether they are combined because the table has one row of a key, although an insert adds rows.
        deletes_yield: Whether deletes are dropped if the batch has other rows with their key.
        provided_columns: The columns that the batch provides, if not all; stored rows keep their values of the others.
        lacks: Sets of columns that only some rows provide, by the control column of the rows
            (`rows.absent_columns`).
        reads_no_rows: Whether rows are appended without reading stored rows.
        completes: Whether partial rows in log files are completed with the stored values. Apache Hudi reads partial
            rows of a table with column ids as if the other columns were null.
        generates_keys: Whether each row gets a new record key.
        fills_keys: Whether rows without a record key get a new one, as those that a MERGE inserts do.
    """

    deletes_only: bool = False
    ordered_deletes: bool = False
    combine: bool = True
    drops_repeated: bool = False
    deletes_yield: bool = False
    provided_columns: tuple[str, ...] | None = None
    lacks: Groups = ()
    reads_no_rows: bool = False
    completes: bool = False
    generates_keys: bool = False
    fills_keys: bool = False

    @property
    def keeps(self) -> bool:
        """Whether rows provide only some columns, and stored rows keep their values of the others."""
        return self.provided_columns is not None or bool(self.lacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """The settings of a write for its tasks.

    Attributes:
        storage: The storage of the table.
        clock: The clock for the durations of write statistics.
        instant: The requested time of the write.
        table: The name of the table.
        schema: The data columns after schema evolution, without meta columns.
        avro_schema: The same columns as an Avro schema, in JSON.
        keys: How record keys and partition paths are built.
        rule: How versions of a record are merged.
        policy: The options of the write.
        bytes_per_row: The expected size of a row in a file.
        incoming: The properties of the incoming rows.
        layout: The layout of staged rows that the index needs, and the places where rows with their keys may be stored.
        move_partitions: Whether a row whose partition changed moves to the new partition. Otherwise it is updated in
            its old partition.
        max_log_bytes: The maximum size of a log file.
        cdc: The contents of change logs; None if the table has none.
        event_time: The column whose range is reported in write statistics; empty if there is none.
        indexed: The columns whose bounds are reported in write statistics; None without a metadata table.
        rounds: Whether numbers of the batch may lose digits in the types of the table.
        known_partitions: Partitions whose metadata file exists.
        table_layout: The behaviour that depends on the table version.
    """

    storage: Storage
    clock: WaitClock
    instant: str
    table: str
    schema: pa.Schema
    avro_schema: str
    keys: KeyConfig
    rule: MergeRule
    policy: WritePolicy
    bytes_per_row: float
    incoming: Incoming = field(default_factory=Incoming)
    layout: StagingLayout = field(default_factory=StagingLayout)
    move_partitions: bool = False
    max_log_bytes: int = 1 << 30
    cdc: CdcMode | None = None
    event_time: str = ""
    indexed: tuple[str, ...] | None = None
    rounds: bool = False
    known_partitions: frozenset[str] = frozenset()
    table_layout: TableLayout = NEWEST

    def with_incoming(self, **changes: Any) -> WriteContext:
        """Return the settings with fields of `incoming` changed."""
        return replace(self, incoming=replace(self.incoming, **changes))

    @property
    def missing_columns(self) -> frozenset[str]:
        """The columns that some rows do not provide."""
        provided, lacks = self.incoming.provided_columns, self.incoming.lacks
        names = frozenset(self.schema.names)
        return names.difference(names if provided is None else provided).union(*lacks)

    @property
    def staging(self) -> str:
        """The directory of the staged rows, relative to the table. It is deleted at the end of the write."""
        return f".hoodie/.staging/{self.instant}"

    @property
    def partition_limits(self) -> PathLimits:
        """The limits for the paths of new partitions."""
        reserved = _NAME_BYTES + (_MARKER_BYTES if self.policy.marks_each_file else 0)
        return partition_limits(self.storage.root, reserved)

    @property
    def rows_per_file(self) -> int:
        """The number of rows in a full base file, by the row sizes of earlier commits."""
        rows = max(int(self.policy.max_file_bytes / self.bytes_per_row), 1)
        return min(rows, self.budget.keys_per_file(self.policy.bloom_fpp))

    @property
    def budget(self) -> Budget:
        """The memory budget of a task."""
        return Budget(self.policy.memory_budget_bytes)


Batches = Iterator[pa.RecordBatch]
