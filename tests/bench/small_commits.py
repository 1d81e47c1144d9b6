"""The CPU time of small commits with metadata table, divided by that of the same commits without.

Both tables get the same commits in turn, so that a change of the machine's speed changes both sides. The mean includes
the services of the metadata table, such as a compaction after ten commits; the median does not.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.table.table import Table
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting

# Multiples of ten, so that each measured side has one compaction in ten commits.
COMMITS, WARM_UPS = 40, 5
LARGE_FILES, LARGE_COMMITS = 1_000, 20
SMALL_TARGET, LARGE_TARGET = 1.3, 1.1
_KEYS = 1_000
_WITH, _WITHOUT = "true", "false"
_BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}

Commit = Callable[[Table, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of commit: the table, and the commit with a number."""

    name: str
    commit: Commit
    table_type: str = "COPY_ON_WRITE"
    options: Mapping[str, str]
    commits: int = COMMITS
    target: float = SMALL_TARGET


def kinds() -> tuple[Kind, ...]:
    """Return the measured kinds of commits."""
    return (
        Kind(name="upsert, copy-on-write", commit=_upsert, options={}),
        Kind(name="insert", commit=_insert, options={}),
        Kind(name="upsert, merge-on-read, simple index", commit=_upsert, table_type="MERGE_ON_READ", options={}),
        Kind(name="upsert, merge-on-read, bucket index", commit=_upsert, table_type="MERGE_ON_READ", options=_BUCKETS),
        Kind(name="bulk_insert", commit=_bulk_insert, options={}),
        Kind(
            name=f"bulk_insert of {LARGE_FILES:,} files",
            commit=_bulk_insert_files,
            options={},
            commits=LARGE_COMMITS,
            target=LARGE_TARGET,
        ),
    )


def run(setting: Setting) -> list[Comparison]:
    """Print the ratios of the mean and of the median for each kind of commit."""
    lines = [("commit", "without ms", "adds ms", "mean", "median", "target", "")]
    for kind in kinds():
        taken = measure(setting, kind)
        means = {side: statistics.mean(values) * 1000 for side, values in taken.items()}
        medians = {side: statistics.median(values) * 1000 for side, values in taken.items()}
        mean, median = means[_WITH] / means[_WITHOUT], medians[_WITH] / medians[_WITHOUT]
        lines.append(
            (
                kind.name,
                f"{means[_WITHOUT]:.1f}",
                f"{means[_WITH] - means[_WITHOUT]:.1f}",
                f"{mean:.2f}",
                f"{median:.2f}",
                f"<= {kind.target}",
                "" if mean <= kind.target else "MISSED",
            )
        )
    show_lines(lines)
    return []


def measure(setting: Setting, kind: Kind) -> dict[str, list[float]]:
    """Return the CPU seconds of each commit with and without metadata table."""
    tables = {side: _table(setting, kind, side) for side in (_WITHOUT, _WITH)}
    taken: dict[str, list[float]] = {side: [] for side in tables}
    for number in range(WARM_UPS + kind.commits):
        # The order alternates, because the second side may find caches warm.
        for side in sorted(tables, reverse=bool(number % 2)):
            gc.collect()
            started = time.process_time()
            kind.commit(tables[side], number)
            if number >= WARM_UPS:
                taken[side].append(time.process_time() - started)
    return taken


def _table(setting: Setting, kind: Kind, side: str) -> Table:
    location = setting.fresh(f"small-commits-{side}")
    table = Table.create(
        location,
        name="rows",
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type=kind.table_type,
        options={"hoodie.metadata.enable": side, **kind.options},
    )
    table.bulk_insert(_rows([f"k{number}" for number in range(_KEYS)], ["p"] * _KEYS, 0))
    return table


def _rows(keys: list[str], partitions: list[str], number: int) -> pa.Table:
    count = len(keys)
    return pa.table(
        {
            "id": keys,
            "p": partitions,
            "v": pa.array([number] * count, pa.int64()),
            "ts": pa.array([number] * count, pa.int64()),
        }
    )


def _upsert(table: Table, number: int) -> object:
    return table.upsert(_rows([f"k{number}"], ["p"], number + 1))


def _insert(table: Table, number: int) -> object:
    return table.insert(_rows([f"new-{number}"], ["p"], number))


def _bulk_insert(table: Table, number: int) -> object:
    return table.bulk_insert(_rows([f"new-{number}"], ["p"], number))


def _bulk_insert_files(table: Table, number: int) -> object:
    keys = [f"new-{number}-{place}" for place in range(LARGE_FILES)]
    return table.bulk_insert(_rows(keys, [f"part-{place:05d}" for place in range(LARGE_FILES)], number))
