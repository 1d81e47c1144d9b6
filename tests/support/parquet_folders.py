"""Folders of plain Parquet files, as other programs leave them: the sources of bootstraps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def orders(first: int, last: int, **columns: str) -> pa.Table:
    """Return the orders of some numbers, with constant columns."""
    numbers = range(first, last)
    rows = {
        "id": [f"k{number:04d}" for number in numbers],
        "amount": pa.array(numbers, pa.int64()),
        "ts": pa.array([1] * len(numbers), pa.int64()),
    }
    return pa.table({**rows, **{name: [value] * len(numbers) for name, value in columns.items()}})


def write_folders(root: Path, files: Mapping[str, pa.Table], *, group_rows: int = 7) -> Path:
    """Write tables as Parquet files with small row groups, by their paths below `root`; return `root`."""
    for path, rows in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target, row_group_size=group_rows)
    return root


def regions(root: Path) -> Path:
    """Write 100 orders into folders `region=...`, whose files lack that column; return `root`."""
    return write_folders(
        root,
        {
            "region=north/a.parquet": orders(0, 30),
            "region=north/b.parquet": orders(30, 60),
            "region=south/a.parquet": orders(60, 100),
        },
    )
