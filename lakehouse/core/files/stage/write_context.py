"""The settings of a write for its tasks: small, picklable, and the same for all tasks of one write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakehouse.core.files.stage.memory_budget import Budget
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.index.staging_layout import StagingLayout
from lakehouse.core.rows.absent_columns import Groups
from lakehouse.core.storage.path_limits import partition_limits
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import WaitClock
from lakehouse.model.keys import KeyConfig
from lakehouse.model.merge import MergeRule
from lakehouse.model.path_limits import PathLimits
from lakehouse.spec.options.write import WritePolicy

#: What the name of a file adds to its partition path: the longest, that of a log file with a temporary name, has 123
#: bytes. Hash ranges of a partition are in a folder of the metadata, with 80 bytes more.
_NAME_BYTES = 128
#: What the path of a marker adds to the path of its file: its folder and its suffix.
_MARKER_BYTES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """What the rows of a batch are, and what they lack.

    Attributes:
        deletes_only: The rows are keys to delete.
        ordered_deletes: Keys to delete have ordering columns; stored rows that are newer are kept.
        combine: Rows of one key in the batch are combined.
        deletes_yield: Deletes are dropped if the batch has other rows of their key.
        provided_columns: The columns that the batch provides, if not all; stored rows keep their values of the others.
        lacks: Sets of columns that only some rows provide, as the control column of the rows says
            (`rows.absent_columns`).
        reads_no_rows: Rows are appended without reading stored rows.
    """

    deletes_only: bool = False
    ordered_deletes: bool = False
    combine: bool = True
    deletes_yield: bool = False
    provided_columns: tuple[str, ...] | None = None
    lacks: Groups = ()
    reads_no_rows: bool = False

    @property
    def keeps(self) -> bool:
        """Whether rows provide only some columns, and stored rows keep their values of the others."""
        return self.provided_columns is not None or bool(self.lacks)


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
        incoming: What the rows of the batch are, and what they lack.
        layout: How the index needs the staged rows, and where it may have stored rows with their keys.
        move_partitions: A row whose partition changed moves there; otherwise it is updated in its old partition.
        max_log_bytes: The maximum size of a log file.
        cdc: The contents of change logs; None if the table has none.
        event_time: The column whose range is reported in write statistics; empty for none.
        indexed: The columns whose bounds are reported in write statistics; None without a metadata table.
        rounds: Numbers of the batch may lose digits in the types of the table.
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
    incoming: Incoming = field(default_factory=Incoming)
    layout: StagingLayout = field(default_factory=StagingLayout)
    move_partitions: bool = False
    max_log_bytes: int = 1 << 30
    cdc: CdcMode | None = None
    event_time: str = ""
    indexed: tuple[str, ...] | None = None
    rounds: bool = False
    known_partitions: frozenset[str] = frozenset()

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
