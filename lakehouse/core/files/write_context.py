"""The settings of a write for its tasks: small, picklable, and the same for all tasks of one write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.files.memory_budget import Budget
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.rows.absent_columns import Groups
from lakehouse.core.storage.path_limits import partition_limits
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import WaitClock
from lakehouse.model.keys import KeyConfig
from lakehouse.model.merge import MergeRule
from lakehouse.model.path_limits import PathLimits
from lakehouse.spec.bucket_rules import BucketRules
from lakehouse.spec.options.write import WritePolicy

#: What the name of a file adds to its partition path: the longest, that of a log file with a temporary name, has 123
#: bytes. Hash ranges of a partition are in a folder of the metadata, with 80 bytes more.
_NAME_BYTES = 128
#: What the path of a marker adds to the path of its file: its folder and its suffix.
_MARKER_BYTES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """The settings of one write for its tasks.

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
        deletes_only: The rows are keys to delete.
        ordered_deletes: Keys to delete have ordering columns; stored rows that are newer are kept.
        combine: Rows of one key in the batch are combined.
        deletes_yield: Deletes are dropped if the batch has other rows of their key.
        buckets: The numbers of buckets per partition; None without the bucket index.
        hash_order: Staged rows are ordered by the hash of their keys, for consistent hashing.
        hash_fields: The key fields that the bucket index hashes; all if empty.
        global_keys: Keys are looked up in all partitions.
        move_partitions: A row whose partition changed moves there; otherwise it is updated in its old partition.
        max_log_bytes: The maximum size of a log file.
        provided_columns: The columns that the batch provides, if not all; stored rows keep their values of the others.
        lacks: Sets of columns that only some rows provide, as the control column of the rows says
            (`rows.absent_columns`).
        cdc: The contents of change logs; None if the table has none.
        reads_no_rows: Rows are appended without reading stored rows.
        event_time: The column whose range is reported in write statistics; empty for none.
        indexed: The columns whose bounds are reported in write statistics; None without a metadata table.
        rounds: Numbers of the batch may lose digits in the types of the table.
        spread_column: The column whose values are counted, and whose large values are staged apart; empty for none.
        spread_large: The large values of that column.
        known_partitions: Partitions whose metadata file exists.
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
    deletes_only: bool = False
    ordered_deletes: bool = False
    combine: bool = True
    deletes_yield: bool = False
    buckets: BucketRules | None = None
    hash_order: bool = False
    hash_fields: tuple[str, ...] = ()
    global_keys: bool = False
    move_partitions: bool = False
    max_log_bytes: int = 1 << 30
    provided_columns: tuple[str, ...] | None = None
    lacks: Groups = ()
    cdc: CdcMode | None = None
    reads_no_rows: bool = False
    event_time: str = ""
    indexed: tuple[str, ...] | None = None
    rounds: bool = False
    spread_column: str = ""
    spread_large: tuple[str, ...] = ()
    known_partitions: frozenset[str] = frozenset()

    @property
    def keeps(self) -> bool:
        """Whether rows provide only some columns, and stored rows keep their values of the others."""
        return self.provided_columns is not None or bool(self.lacks)

    @property
    def missing_columns(self) -> frozenset[str]:
        """The columns that some rows do not provide."""
        provided = frozenset(self.schema.names if self.provided_columns is None else self.provided_columns)
        return frozenset(self.schema.names).difference(provided).union(*self.lacks)

    @property
    def hashes_keys(self) -> bool:
        """Whether the hash of a key determines its file group."""
        return self.buckets is not None or self.hash_order

    @property
    def staging(self) -> str:
        """The directory of the staged rows, relative to the table. It is deleted at the end of the write."""
        return f".hoodie/.staging/{self.instant}"

    @property
    def partition_limits(self) -> PathLimits:
        """The limits of the paths of new partitions."""
        reserved = _NAME_BYTES + (_MARKER_BYTES if self.policy.marks_each_file else 0)
        return partition_limits(self.storage.root, reserved)

    @property
    def rows_per_file(self) -> int:
        """The number of rows of a full base file, by the row sizes of earlier commits."""
        rows = max(int(self.policy.max_file_bytes / self.bytes_per_row), 1)
        return min(rows, self.budget.keys_per_file(self.policy.bloom_fpp))

    @property
    def budget(self) -> Budget:
        """The memory budget of a task."""
        return Budget(self.policy.memory_budget_bytes)


Batches = Iterator[pa.RecordBatch]
