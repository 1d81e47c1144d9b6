"""Look-up of random keys in the base files of a record index: time, and the size of layouts of blocks.

The index has 12.5 entries for each row of the setting, 50 million by default, in ten file groups. The files are mapped
into memory, as a local store does it. `open` reads trailers and indexes; the first look-up maps its pages.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.format.hfile.writer import LOOKED_UP, SCANNED, HFileWriter, Layout
from tests.bench.measure import Comparison, cpu_seconds, show_lines
from tests.bench.setting import CORES, Setting

GROUPS = 10
KEYS = 100_000
#: File groups that a layout is measured with, apart from the one that is written by default.
_SAMPLE = 1
_BATCH = 250_000
_LAYOUTS = {
    "4 KB, not compressed": LOOKED_UP,
    "64 KB, not compressed": Layout(compression="none"),
    "4 KB, gzip": Layout(block_bytes=4096),
    "64 KB, gzip": SCANNED,
}
_DASHES, _UUID_CHARS = (8, 13, 18, 23), 36
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
#: Encoded location before and after the bits of the file id: type 5, partition part=2024x; file number 0, instant.
_BEFORE, _AFTER = bytes(6) + b"\x0a\0\0\0\x02\x02\x14part=2024x", b"\x02\0\x02\0\x02\xe8\xfb\xd2\xa0\xc6\x65\0\0\0"
_FILES = 2_000

_T = TypeVar("_T")


def run(setting: Setting) -> list[Comparison]:
    """Print size, CPU time and elapsed time for each layout."""
    lines: list[tuple[str, ...]] = [("blocks", "entries", "bytes each", "keys", "phase", "elapsed s", "cpu s")]
    for name, layout in _LAYOUTS.items():
        groups = GROUPS if layout is LOOKED_UP else _SAMPLE
        per_group = setting.rows * 25 // 2 // GROUPS
        paths = _written(setting.home / "key-look-up", layout, groups, per_group)
        keys = [_keys(group, per_group)[:: per_group // (KEYS // GROUPS)] for group in range(groups)]
        wanted = [_column(matrix) for matrix in keys]
        sizes = sum(path.stat().st_size for path in paths) / (groups * per_group)
        facts = (name, f"{groups * per_group:,}", f"{sizes:.0f}", f"{sum(map(len, wanted)):,}")
        files, took = _timed(lambda paths=paths: _each(_opened, paths))  # type: ignore[misc]
        lines.append((*facts, "open", *took))
        for phase in ("first look-up", "second look-up"):
            pairs = list(zip(files, wanted, strict=True))
            found, took = _timed(lambda pairs=pairs: _each(lambda pair: pair[0].find(pair[1]), pairs))  # type: ignore[misc]
            assert [table.num_rows for table in found] == [len(some) for some in wanted]
            lines.append((*facts, phase, *took))
    show_lines(lines)
    return []


def _each(function: Callable[[Any], _T], items: Any) -> list[_T]:
    with ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(function, items))


def _timed(work: Callable[[], _T]) -> tuple[_T, tuple[str, str]]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    done = work()
    return done, (f"{time.perf_counter() - wall:.2f}", f"{cpu_seconds() - cpu:.2f}")


def _opened(path: Path) -> HFile:
    with path.open("rb") as file:
        return read_hfile(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), name=path.name)


def _written(folder: Path, layout: Layout, groups: int, entries: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for group in range(groups):
        path = folder / f"{group}-{entries}-{layout.block_bytes}-{layout.compression}.hfile"
        if not path.exists():
            _write(path, layout, group, entries)
        paths.append(path)
    return paths


def _write(path: Path, layout: Layout, group: int, entries: int) -> None:
    keys, rng = _keys(group, entries), np.random.default_rng(GROUPS + group)
    files = rng.integers(0, 256, (_FILES, 22), dtype=np.uint8)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        writer = HFileWriter(file.write, schema="x" * 4_000, created_ms=1, layout=layout, bounds=True)
        for start in range(0, entries, _BATCH):
            some = keys[start : start + _BATCH]
            values = np.concatenate(
                [
                    np.tile(np.frombuffer(_BEFORE, np.uint8), (len(some), 1)),
                    files[rng.integers(0, _FILES, len(some))],
                    np.tile(np.frombuffer(_AFTER, np.uint8), (len(some), 1)),
                ],
                axis=1,
            )
            column = _column(values)
            # The bits of a file id are integers of variable length, so the sizes of records differ.
            is_short = pa.array(np.arange(len(some)) % 3 == 0)
            column = pc.if_else(is_short, pc.binary_slice(column, 0, values.shape[1] - 1), column)
            writer.add(pa.Table.from_arrays([_column(some), column], schema=ENTRIES))
        writer.close()
    partial.rename(path)


def _keys(group: int, entries: int) -> Any:
    """Return the sorted random keys of a file group, UUIDs, as a matrix of bytes."""
    raw = np.random.default_rng(group).integers(0, 256, (entries, 16), dtype=np.uint8)
    digits = np.empty((entries, 32), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[raw >> 4], _HEX[raw & 15]
    keys = np.full((entries, _UUID_CHARS), ord("-"), np.uint8)
    keys[:, [at for at in range(_UUID_CHARS) if at not in _DASHES]] = digits
    return keys[np.argsort(keys.view(f"S{_UUID_CHARS}").ravel(), kind="stable")]


def _column(matrix: Any) -> Any:
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix.copy())])
