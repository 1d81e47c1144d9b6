"""Compaction against a baseline that merges and writes the same file slices with Arrow in two processes.

The baseline reads base and log files, matches keys with one index_in, filters, and writes with the same codec, row
groups and encodings. It has no memory budget, writes no bloom filter and makes no commit.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.table.table import Table
from lakehouse.model.files import FileSlice
from tests.bench.data import KEY
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.merge_on_read import loaded, update_set
from tests.bench.setting import CODEC, CORES, Setting, read, spark

SHARE = 0.1
TARGET = 1 / 0.6
_RECORD_KEY = "_hoodie_record_key"


def run(setting: Setting) -> list[Comparison]:
    """Measure compaction on Spark and in threads of this process."""
    on_spark, in_threads = loaded(setting, "compact-spark", {}), loaded(setting, "compact-threads", {})
    with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
        baseline = _Baseline(setting, pool)
        sides = [
            Side(name="Spark", before=lambda n: baseline.update(on_spark, n), run=lambda _: _compact(on_spark, True)),
            Side(name="baseline", run=lambda _: baseline.run()),
            Side(
                name="threads",
                before=lambda n: baseline.update(in_threads, n),
                run=lambda _: _compact(in_threads, False),
            ),
        ]
        samples = interleave(sides, setting.rounds)
        rows = sum(pq.read_metadata(path).num_rows for path in baseline.written)
    assert on_spark.scan(columns=[KEY]).count() == in_threads.scan(columns=[KEY]).count() == rows == setting.rows
    what = f"compaction of {SHARE:.0%} in logs"
    return [compare(f"{what}, {ours}", samples, ours, "baseline", TARGET) for ours in ("Spark", "threads")]


def _compact(table: Table, with_spark: bool) -> None:
    outcome = table.services.compaction.run(force=True, spark=spark() if with_spark else None)
    assert isinstance(outcome, Committed), outcome


@dataclass(slots=True)
class _Baseline:
    setting: Setting
    pool: ProcessPoolExecutor
    root: Path = Path()
    slices: Sequence[FileSlice] = ()
    written: list[str] = field(default_factory=list)

    def update(self, table: Table, number: int) -> None:
        """Upsert the updates of the round into a table, and merge its slices in the next run."""
        table.upsert(read(update_set(self.setting, SHARE, number)))
        self.root = Path(table.location.removeprefix("file://"))
        self.slices = load_slices(table.refresh())

    def run(self) -> None:
        """Merge the slices in two processes."""
        target = Path(self.setting.fresh("compact-baseline"))
        target.mkdir()
        work = [
            (str(self.root / s.base.path), [str(self.root / log.path) for log in s.logs], str(target / f"{n}.parquet"))
            for n, s in enumerate(sorted(self.slices, key=lambda s: -(s.base.size_bytes if s.base else 0)))
            if s.base is not None
        ]
        self.written = list(self.pool.map(_merge, work))


def _merge(work: tuple[str, list[str], str]) -> str:
    base_path, log_paths, target = work
    with pq.ParquetFile(base_path) as file:
        footer, base = file.metadata, file.read(use_threads=False)
    newest = pa.concat_tables([block for path in log_paths for block in _blocks(path)])
    found = pc.index_in(base.column(_RECORD_KEY), value_set=newest.column(_RECORD_KEY).combine_chunks())
    merged = pa.concat_tables([base.filter(pc.is_null(found)), newest.cast(base.schema)])
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    with pq.ParquetWriter(
        target,
        merged.schema,
        compression=CODEC,
        use_dictionary=[c.path_in_schema for c in columns if c.has_dictionary_page],
        column_encoding={
            c.path_in_schema: encoding
            for c in columns
            for encoding in ("DELTA_BYTE_ARRAY", "DELTA_BINARY_PACKED")
            if encoding in c.encodings and not c.has_dictionary_page
        },
        store_schema=False,
    ) as writer:
        writer.write_table(merged, row_group_size=footer.row_group(0).num_rows)
    return target


def _blocks(path: str) -> list[pa.Table]:
    tables = []
    with pa.memory_map(path) as source:
        for block in scan_blocks(source):
            source.seek(block.offset)
            tables.append(pq.read_table(pa.BufferReader(source.read_buffer(block.length)), use_threads=False))
    return tables
