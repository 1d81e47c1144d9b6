"""Peak memory of loads and upserts in process: several threads stay within one memory budget."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.engine import adapters
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.table.table import Table

_MB = 1 << 20
BUDGET = 96 * _MB
ROWS, BATCH_ROWS, PARTITIONS = 1_200_000, 50_000, 5
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("text", pa.string())])

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process of Linux")


@pytest.mark.parametrize("threads", [1, 4])
def test_loads_and_upserts_stay_within_the_budget_with_any_number_of_threads(tmp_path: Path, threads: int) -> None:
    # Arrow's default allocator keeps freed memory, which depends on the moment.
    allocator = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1000000"}
    allocator["MALLOC_MMAP_THRESHOLD_"] = "1000000"
    command = [sys.executable, "-m", "tests.property.test_load_memory", str(tmp_path / "t"), str(threads)]
    ended = subprocess.run(command, env={**os.environ, **allocator}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    peaks = json.loads(ended.stdout)
    assert set(peaks) == {"bulk_insert", "upsert", "upsert of all rows"}
    assert all(0 < peak <= BUDGET for peak in peaks.values()), peaks


def batches(rows: int, step: int, version: int) -> pa.RecordBatchReader:
    """Return every `step`-th row, made batch by batch."""

    def made() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, BATCH_ROWS * step):
            numbers = np.arange(start, min(start + BATCH_ROWS * step, rows), step)
            texts = pa.array(numbers * 7_919 % 1_000_003).cast(pa.string())
            partitions = pa.array([f"p{n}" for n in range(PARTITIONS)]).take(pa.array(numbers % PARTITIONS))
            columns = [pa.array(numbers + 10**15).cast(pa.string()), partitions, np.full(len(numbers), version), texts]
            columns[3] = pc.binary_join_element_wise("a long text of about eighty characters", texts, texts, "-")
            yield pa.record_batch(columns, schema=SCHEMA)

    return pa.RecordBatchReader.from_batches(SCHEMA, made())


class Peak:
    """The peak of the anonymous memory of this process during a block, above that of its begin."""

    def __enter__(self) -> Peak:
        # Memory that the write before has freed and not given back is not idle: the next write uses it again.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._stop, self.size_bytes, self._idle = threading.Event(), 0, _anonymous_bytes()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.003):
            self.size_bytes = max(self.size_bytes, _anonymous_bytes() - self._idle)


def _anonymous_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024


def main(location: str, threads: int) -> None:
    """Print the peaks of some writes."""
    adapters.LocalEngine = lambda: LocalEngine(threads)  # type: ignore[misc,assignment]
    small = Table.create(location + "-small", name="t", record_key="id", partition_by="p", ordering="ts")
    small.bulk_insert(batches(1_000, 1, 1))
    small.upsert(batches(1_000, 10, 2))
    options = {"lakehouse.write.memory.budget": str(BUDGET)}
    table = Table.create(location, name="t", record_key="id", partition_by="p", ordering="ts", options=options)
    peaks = {}
    for name, step in (("bulk_insert", 1), ("upsert", 20), ("upsert of all rows", 1)):
        write = table.bulk_insert if name == "bulk_insert" else table.upsert
        with Peak() as peak:
            write(batches(ROWS, step, len(peaks)))
        peaks[name] = peak.size_bytes
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
