"""A merge-on-read table with damaged bytes gives the right rows, the rows without some log blocks, or an error.

The format allows a reader to skip a log block that is corrupt.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from tests.support.killed import copy_of
from tests.support.merged_run import COLUMNS
from tests.support.model import Read, read
from tests.support.naive import NaiveReader, counted
from tests.support.tables import DELETED, Shape, batch, examples, make_env, make_table, row

#: Whether pages of Parquet files have checksums. Without them a reader cannot detect a flipped bit of a value.
PAGES_HAVE_CHECKSUMS = False
#: Files that are not damaged.
LEFT_OUT = ("hoodie.properties", ".hoodie_partition_metadata")


@cache
def whole() -> Storage:
    """Return a table of twenty rows: six are updated, two deleted and one is updated twice. Tests work on copies."""
    storage = MemoryStorage()
    table = make_table(Shape(type="MERGE_ON_READ", rows_per_file=1_000), env=make_env(storage=storage))
    table.bulk_insert(batch(row(f"k{n}", v=f"v{n}", amount=n * 1.5, ts=n) for n in range(20)))
    table.upsert(batch(row(f"k{n}", v="new", amount=-1.0 * n, ts=50) for n in range(6)))
    gone = [row(f"k{n}", ts=60, **{DELETED: True}) for n in (7, 8)]
    table.upsert(batch([*gone, row("k9", v="again", ts=70), row("k1", v="third", ts=70)]))
    return storage


def opened(storage: Storage) -> Table:
    return Table.open(storage.root, env=Env(storage=storage))


@cache
def files() -> list[str]:
    """Return the files to damage; data files occur more often, so that each kind is drawn about equally often."""
    paths = [file.path for file in whole().list("") if file.path.rpartition("/")[2] not in LEFT_OUT]
    data = [path for path in paths if not path.startswith(".hoodie/")]
    return [*paths, *data * 3]


@cache
def without_some_blocks(path: str) -> list[Counter[Read]]:
    """Return the rows of the table for each subset of the blocks of one log file."""
    data = whole().get(path)
    spans = _spans(data)
    kept = chain.from_iterable(combinations(spans, number) for number in range(len(spans) + 1))
    results = []
    for chosen in kept:
        storage = copy_of(whole())
        storage.put(path, b"".join(data[start:stop] for start, stop in chosen))
        results.append(counted(NaiveReader(opened(storage)).snapshot(), COLUMNS))
    return results


def _spans(data: bytes) -> list[tuple[int, int]]:
    starts = [0]
    for block in scan_blocks(io.BytesIO(data))[:-1]:
        # A block ends with the number of its footers and its size, 12 bytes in total.
        starts.append(block.offset + block.length + 12)
    return list(zip(starts, [*starts[1:], len(data)], strict=True))


@cache
def unprotected(path: str) -> list[range]:
    """Return the ranges of bytes that no length and no checksum protects: keys of delete blocks, and Parquet data."""
    data = whole().get(path)
    if path.endswith(".parquet"):
        return [range(len(data))]
    if path.startswith(".hoodie/"):
        return []
    return [_unprotected_of(data, block) for block in scan_blocks(io.BytesIO(data))]


def _unprotected_of(data: bytes, block: LogBlock) -> range:
    start, stop = block.offset, block.offset + block.length
    if block.kind is BlockType.PARQUET_DATA and PAGES_HAVE_CHECKSUMS:
        start = stop - pq.ParquetFile(pa.BufferReader(data[start:stop])).metadata.serialized_size - 8
    return range(start, stop)


@dataclass(frozen=True, slots=True)
class Damage:
    """A flipped bit of a file; if `bit` is None, the file is truncated at this position."""

    path: str
    at: int
    bit: int | None

    def content(self) -> bytes:
        """Return the damaged file."""
        data = whole().get(self.path)
        if self.bit is None or not data:
            return data[: self.at]
        return data[: self.at] + bytes([data[self.at] ^ 1 << self.bit]) + data[self.at + 1 :]

    @property
    def is_noticeable(self) -> bool:
        """Whether a reader can detect the damage by a length or a checksum."""
        return self.bit is None or not any(self.at in span for span in unprotected(self.path))


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Draw a file, a position, and a bit or a truncation."""
    path = draw(st.sampled_from(files()))
    at = draw(st.integers(0, max(len(whole().get(path)) - 1, 0)))
    return Damage(path, at, draw(st.one_of(st.none(), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7))))


@examples(200)
@given(damage=damages())
def test_scan_of_a_damaged_file_gives_the_rows_of_valid_blocks_or_an_error(damage: Damage) -> None:
    storage = copy_of(whole())
    storage.put(damage.path, damage.content())
    try:
        rows = opened(storage).scan().to_arrow()
    except LakehouseError:
        return
    if damage.is_noticeable:
        allowed = [read(opened(whole()))]
        if ".log." in damage.path:
            allowed += without_some_blocks(damage.path)
        assert counted(rows.to_pylist(), COLUMNS) in allowed


def test_each_missing_log_block_changes_the_rows_of_the_table() -> None:
    logs = [path for path in dict.fromkeys(files()) if ".log." in path and not path.startswith(".hoodie/")]
    assert len(logs) == 2
    for path in logs:
        results = without_some_blocks(path)
        assert read(opened(whole())) == results[-1]
        assert all(rows != results[-1] for rows in results[:-1])
