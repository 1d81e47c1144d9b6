"""What every write task is told: small, picklable, the same for all tasks of one write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.files.memory_budget import Budget
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.rows.absent_columns import Groups
from lakehouse.core.storage.protocol import Storage
from lakehouse.model.keys import KeyConfig
from lakehouse.model.merge import MergeRule
from lakehouse.spec.bucket_rules import BucketRules
from lakehouse.spec.options.write import WritePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """One write as its tasks see it. `schema` is that of the data columns after evolution, without meta columns.

    Where the batch brings only some of them (`brought`), stored rows keep their values of the others. `cdc` is what
    change logs hold, if the table has them, `buckets` how many its partitions have, if the write goes by them.
    `reads_no_rows`: rows are appended as they come, whatever is stored. `event_time` is the column whose times are told
    in stats. `lacks`: rows differ in what they bring, as their control column says (see rows.lacks). `rounds`:
    numbers of the batch may lose digits in the types of the table.
    `ordered_deletes`: keys to delete come with ordering columns, and spare stored rows that are newer.
    """

    storage: Storage
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
    buckets: BucketRules | None = None
    hash_fields: tuple[str, ...] = ()
    global_keys: bool = False
    move_partitions: bool = False
    max_log_bytes: int = 1 << 30
    brought: tuple[str, ...] | None = None
    lacks: Groups = ()
    cdc: CdcMode | None = None
    reads_no_rows: bool = False
    event_time: str = ""
    rounds: bool = False

    @property
    def keeps(self) -> bool:
        """Whether rows bring only some columns, and stored rows keep their values of the others."""
        return self.brought is not None or bool(self.lacks)

    @property
    def staging(self) -> str:
        """Directory of this write's staged rows, relative to the table; gone when the write is over."""
        return f".hoodie/.staging/{self.instant}"

    @property
    def rows_per_file(self) -> int:
        """Rows that fill a base file, by the record size earlier commits told."""
        rows = max(int(self.policy.max_file_bytes / self.bytes_per_row), 1)
        return min(rows, self.budget.keys_per_file(self.policy.bloom_fpp))

    @property
    def budget(self) -> Budget:
        """The memory a task may take."""
        return Budget(self.policy.memory_budget_bytes)


Batches = Iterator[pa.RecordBatch]
