"""Run the main operations of a table in an environment with `lakehouse-tables[arrow]` only; a contract test starts it.

The only argument is an empty directory. The program prints the names of the steps as a JSON list.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from lakehouse import Table

CLEAN_SOON = {
    "hoodie.clean.commits.retained": "1",
}


def rows(*ids: str, ts: int) -> pa.Table:
    """Return rows with these ids in one partition."""
    return pa.table({"id": ids, "ts": [ts] * len(ids), "day": ["2026-01-01"] * len(ids)})


def check_environment() -> None:
    """Fail if pyspark or Java is installed, or if lakehouse is imported from a source tree."""
    assert find_spec("pyspark") is None and find_spec("pandas") is None
    assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
    installed = find_spec("lakehouse")
    assert installed is not None and str(installed.origin).startswith(sys.prefix), installed


def merge_on_read(folder: Path) -> list[str]:
    """Write, compact and clean a merge-on-read table."""
    table = Table.create(
        str(folder),
        name="events",
        record_key="id",
        partition_by="day",
        ordering="ts",
        table_type="MERGE_ON_READ",
        options=CLEAN_SOON,
    )
    table.upsert(rows("a", "b", "c", ts=1))
    table.upsert(rows("b", "c", ts=2))
    assert sorted(table.scan(["id", "ts"]).to_arrow().to_pylist(), key=str) == [
        {"id": "a", "ts": 1},
        {"id": "b", "ts": 2},
        {"id": "c", "ts": 2},
    ]
    logs = [log for log in folder.rglob("*.log.*") if ".hoodie" not in log.parts]
    assert logs
    table.services.compaction.run(force=True)
    assert table.scan(read_optimized=True).to_arrow().num_rows == 3
    table.upsert(rows("d", ts=3))
    table.services.compaction.run(force=True)
    table.services.clean.run(force=True)
    assert not any(log.exists() for log in logs)
    assert table.scan().to_arrow().num_rows == 4
    return ["create", "upsert", "scan", "compact", "clean"]


def clustering(folder: Path) -> list[str]:
    """Write small files and cluster them into one."""
    table = Table.create(str(folder), name="orders", record_key="id", options={"hoodie.parquet.small.file.limit": "0"})
    for number in range(3):
        table.insert(rows(f"k{number}", ts=number))
    table.services.clustering.run(force=True)
    last = table.commits()[-1][1]
    assert last.operation == "CLUSTER" and len(last.stats) == 1, last
    assert table.scan(["id"]).to_arrow().num_rows == 3
    return ["cluster"]


def main(folder: Path) -> list[str]:
    """Run all steps in subdirectories of `folder` and return their names."""
    check_environment()
    journeys: tuple[Callable[[Path], list[str]], ...] = (merge_on_read, clustering)
    steps = [step for journey in journeys for step in journey(folder / journey.__name__)]
    assert not {"pyspark", "py4j"} & sys.modules.keys()
    return steps


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
