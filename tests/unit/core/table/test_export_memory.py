"""Readers of other engines and inputs larger than memory stay within the memory budget, measured in a child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="missing: duckdb")
pytest.importorskip("polars", reason="missing: polars")

BUDGET_MB, TABLE_MB = 32, 192
HEAD = f"""
import sys
import numpy as np, pyarrow as pa, duckdb, polars
from lakehouse import Table

ROWS, BATCHES = 12_000, {TABLE_MB // 6}
OPTIONS = {{"lakehouse.write.memory.budget": "{BUDGET_MB << 20}"}}

def batches():
    for number in range(BATCHES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        yield pa.record_batch({{"id": ids, "n": ids % 7, "s": [f"{{each:0500d}}" for each in ids.tolist()]}})

pool = pa.default_memory_pool()
"""
LOAD = """
table = Table.create(sys.argv[1], name="t", record_key="id", table_type="MERGE_ON_READ", options=OPTIONS)
table.bulk_insert(batches())
table.upsert([{"id": 5, "n": 100, "s": "x"}])
"""
READS = {
    "stream": "rows = sum(b.num_rows for b in pa.RecordBatchReader.from_stream(table.scan()))",
    "batches": "rows = sum(b.num_rows for b in table.scan().to_batches())",
    "duckdb": "rows = table.scan().to_duckdb().aggregate('count(s)').fetchall()[0][0]",
    "polars": "rows = table.scan().to_polars().select(polars.col('s').count()).collect(engine='streaming').item()",
    "dataset": "rows = sum(b.num_rows for b in table.scan().to_dataset().to_batches(columns=['s']))",
}
CHECK = """
print(rows, pool.max_memory() >> 20)
"""
DICTS = """
table = Table.create(sys.argv[1], name="t", record_key="id", options=OPTIONS)
def rows():
    for number in range(BATCHES * 4_000):
        yield {"id": number, "n": number % 7, "s": f"{number:0500d}"}
table.bulk_insert(rows())
rows = table.scan().count()
"""


def measured(script: str, path: Path) -> tuple[int, int]:
    """Return the number of rows and the peak of Arrow's memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    # DuckDB prints a progress bar before on a slow machine.
    rows, peak = done.stdout.split()[-2:]
    return int(rows), int(peak)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "t"
    rows, peak = measured(HEAD + LOAD + "rows = table.scan().count()" + CHECK, path)
    assert rows == 12_000 * (TABLE_MB // 6)
    assert peak <= 3 * BUDGET_MB, "the stream of batches is larger than the budget"
    return path


@pytest.mark.parametrize("kind", READS)
def test_readers_of_a_table_larger_than_the_budget_stay_within_it(kind: str, loaded: Path) -> None:
    script = f"{HEAD}table = Table.open(sys.argv[1], options=OPTIONS)\n{READS[kind]}\n{CHECK}"
    rows, peak = measured(script, loaded)
    assert rows == 12_000 * (TABLE_MB // 6)
    assert peak <= 2 * BUDGET_MB


def test_dicts_larger_than_the_budget_are_spilled(tmp_path: Path) -> None:
    rows, peak = measured(HEAD + DICTS + CHECK, tmp_path / "t")
    assert rows == 4_000 * (TABLE_MB // 6)
    assert peak <= 2 * BUDGET_MB
