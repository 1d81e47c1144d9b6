"""Options of log files of merge-on-read tables."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.options.option import option

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """How log files of merge-on-read tables are written."""

    max_file_bytes: int = option("hoodie.logfile.max.size", 1024 * _MB, "Largest log file, in bytes.")
    block_format: str = option(
        "hoodie.logfile.data.block.format",
        "parquet",
        "Format of data blocks in log files. Avro blocks can be read but are not written.",
        choices=("parquet",),
    )
    bucket_inserts: str = option(
        "lakehouse.bucket.inserts",
        "base",
        "Bucket index of merge-on-read tables: whether a new bucket starts with a base file or a log file.",
        choices=("base", "log"),
    )
