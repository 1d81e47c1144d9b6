"""Buckets of a partition that grows: the largest bucket, and what a compaction of one update rewrites, with and without
splits; and the throughput of the hash of consistent hashing beside the one of numbered buckets.
"""

from __future__ import annotations

import pyarrow as pa

from lakehouse.core.index.hash.bucket import bucket_ids
from lakehouse.core.index.hash.consistent_hashing import key_hashes
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.table.table import Table
from tests.bench.measure import Comparison, cpu_seconds, show_lines
from tests.bench.setting import Setting

_BATCHES = 8
_MB = 1e6
_INDEX = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.bucket.index.merge.threshold": "0",
    "hoodie.parquet.compression.codec": "none",
}


def run(setting: Setting) -> list[Comparison]:
    """Print buckets and rewritten bytes of a growing partition, and the throughput of both hashes."""
    rows = min(setting.rows, 400_000)
    lines: list[tuple[str, ...]] = [("table", "rows", "buckets", "largest MB", "MB rewritten for one row")]
    lines += [_grown(setting, rows, splits=splits) for splits in (False, True)]
    show_lines(lines)
    _hashes(min(setting.rows, 1_000_000))
    return []


def _rows(first: int, last: int) -> pa.Table:
    numbers = range(first, last)
    columns = {f"c{column}": pa.array([number * column % 997 for number in numbers]) for column in range(1, 9)}
    return pa.table({"id": [f"key-{number:09d}" for number in numbers], "p": ["a"] * len(numbers), **columns})


def _grown(setting: Setting, rows: int, *, splits: bool) -> tuple[str, ...]:
    """Write the rows in batches, with a clustering after each if buckets split, and return a line of the table."""
    share = rows // _BATCHES
    # A bucket splits when it has a share of the rows: a row has about 90 bytes.
    sizes = {"hoodie.parquet.max.file.size": str(share * 90), "hoodie.bucket.index.split.threshold": "1"}
    table = Table.create(
        setting.fresh(f"buckets-{splits}"),
        name="buckets",
        record_key="id",
        partition_by="p",
        table_type="MERGE_ON_READ",
        options={**_INDEX, **sizes},
    )
    for number in range(_BATCHES):
        table.upsert(_rows(number * share, (number + 1) * share))
        table.services.compaction.run(force=True)
        if splits:
            table.services.clustering.run(force=True)
    largest = max(s.base.size_bytes for s in load_slices(table.refresh()) if s.base is not None)
    table.upsert(_rows(7, 8))
    compacted = table.services.compaction.run(force=True)
    assert isinstance(compacted, Committed)
    assert table.scan().count() == share * _BATCHES
    return (
        "with splits" if splits else "without splits",
        f"{share * _BATCHES:,}",
        str(len(load_slices(table.refresh()))),
        f"{largest / _MB:.2f}",
        f"{compacted.totals.bytes / _MB:.2f}",
    )


def _hashes(rows: int) -> None:
    keys = pa.array([f"customer-{number:012d}" for number in range(rows)])
    fields = ("id",)
    began = cpu_seconds()
    key_hashes(keys, key_fields=fields, hash_fields=fields)
    ring = cpu_seconds() - began
    began = cpu_seconds()
    bucket_ids(keys, key_fields=fields, hash_fields=fields, buckets=64)
    numbered = cpu_seconds() - began
    size = keys.nbytes / _MB
    show_lines(
        [
            ("hash", "keys", "MB/s of CPU time", "ratio"),
            ("XXH32 (ranges)", f"{rows:,}", f"{size / max(ring, 1e-9):,.0f}", f"{ring / max(numbered, 1e-9):.2f}"),
            ("List.hashCode (numbers)", f"{rows:,}", f"{size / max(numbered, 1e-9):,.0f}", "1.00"),
        ]
    )
