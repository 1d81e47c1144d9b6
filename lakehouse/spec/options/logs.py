"""Options of log files of merge-on-read tables."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.options.option import option

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """How log files of merge-on-read tables are made."""

    max_file_bytes: int = option("hoodie.logfile.max.size", 1024 * _MB, "Largest log file, in bytes.")
    block_format: str = option(
        "hoodie.logfile.data.block.format",
        "parquet",
        "Format of data blocks in logs; Avro blocks are read, but not written.",
        choices=("parquet",),
    )
    bucket_inserts: str = option(
        "lakehouse.bucket.inserts",
        "base",
        "Bucket index on merge-on-read: what a new bucket begins with, a base file or a log.",
        choices=("base", "log"),
    )
