"""Options of writes: sizes and encoding of base files, record keys, markers, damaged files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.model.keys import KEY_ENCODING, KeyEncoding
from lakehouse.spec.options.option import option

_MB = 1024 * 1024
DUPLICATES, DROP_DUPLICATES = "hoodie.datasource.insert.dup.policy", "hoodie.datasource.write.insert.drop.duplicates"
BATCHED, DIRECT = "TIMELINE_SERVER_BASED", "DIRECT"


class InsertDuplicates(StrEnum):
    """Treatment of inserted rows whose key exists already; values of `hoodie.datasource.insert.dup.policy`."""

    NONE = "none"
    DROP = "drop"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePolicy:
    """How data files are written."""

    max_file_bytes: int = option("hoodie.parquet.max.file.size", 120 * _MB, "Maximum size of a base file, in bytes.")
    small_file_bytes: int = option(
        "hoodie.parquet.small.file.limit", 100 * _MB, "Inserts fill base files smaller than this, in bytes; 0 = off."
    )
    compression: str = option(
        "hoodie.parquet.compression.codec",
        "zstd",
        "Codec of base files.",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
    )
    row_group_bytes: int = option(
        "hoodie.parquet.block.size", 64 * _MB, "Size of a row group in memory, in bytes, before encoding."
    )
    record_size_bytes: int = option(
        "hoodie.copyonwrite.record.size.estimate",
        256,
        "Estimated size of a record in a file, in bytes; used until a commit of the table shows the actual size.",
    )
    combine_before_insert: bool = option(
        "hoodie.combine.before.insert", False, "Also combine rows of one key in a batch on insert and bulk_insert."
    )
    duplicates: str = option(
        DUPLICATES,
        "none",
        "Rows of an insert whose key is repeated in the batch or exists in the table: insert them (none), leave them "
        "out and count them (drop), or refuse the batch (fail).",
        choices=tuple(InsertDuplicates),
    )
    drop_duplicates: bool = option(DROP_DUPLICATES, False, f"The same as {DUPLICATES}=drop.")
    bloom_enabled: bool = option(
        "hoodie.parquet.bloom.filter.enabled",
        True,
        "Write a bloom filter of the record keys into each base file. The bucket index does not use it; false saves "
        "memory with large files.",
    )
    bloom_fpp: float = option("hoodie.index.bloom.fpp", 1e-9, "False-positive rate of the bloom filter in footers.")
    memory_budget_bytes: int = option(
        "lakehouse.write.memory.budget",
        512 * _MB,
        "Memory of a task that writes, compacts or merges logs, in bytes, in addition to the memory of an idle worker.",
    )
    driver_bytes: int = option(
        "lakehouse.statement.driver.bytes",
        16 * _MB,
        "Size of the source, and of the files to read, up to which MERGE, UPDATE and DELETE with Spark run in the "
        "driver, in bytes. Above it executors read and write all rows; 0 = always.",
    )
    key_encoding: str = option(
        KEY_ENCODING,
        KeyEncoding.CHECKED.value,
        "Record keys of several columns: refuse values that could read as the key of other values, escape them (fixed "
        "when the table is created and stored with it; Hudi can read such tables and must not write them), or accept "
        "them unchecked as Hudi does.",
        choices=tuple(encoding.value for encoding in KeyEncoding),
    )
    max_key_bytes: int = option(
        "lakehouse.record_key.max.bytes",
        16 * 1024,
        "Maximum length of a record key, in bytes; 0 = no limit. The bloom filter hashes a key about thirty times, and "
        "footers and log files store it: keys of 1 MB take a second each.",
    )
    markers_type: str = option(
        "hoodie.write.markers.type",
        BATCHED,
        "How the files of an unfinished write are recorded: many markers in one object, in the layout of Hudi's "
        "timeline server, or one object per file.",
        choices=(BATCHED, DIRECT),
    )
    damaged_files: str = option(
        "lakehouse.damaged.files",
        "fail",
        "What reads, writes and services do when a committed file is missing or damaged: fail, or skip its rows and "
        "log a warning for each file.",
        choices=("fail", "skip"),
    )

    @property
    def skips_damage(self) -> bool:
        """Whether operations skip the rows of damaged files and continue."""
        return self.damaged_files == "skip"

    @property
    def marks_each_file(self) -> bool:
        """Whether each data file gets its own marker file."""
        return self.markers_type == DIRECT

    @property
    def insert_duplicates(self) -> InsertDuplicates:
        """The policy of inserts for keys that exist already."""
        policy = InsertDuplicates(self.duplicates.lower())
        return InsertDuplicates.DROP if self.drop_duplicates and policy is InsertDuplicates.NONE else policy
