"""Broken bytes anywhere in a merge-on-read table: right rows, those the format gives for broken blocks, or an error."""

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

#: Whether pages of parquet files say their checksum. While they do not, nobody can see that a bit of a value changed.
PAGES_HAVE_CHECKSUMS = False
LEFT_OUT = ("hoodie.properties", ".hoodie_partition_metadata")


@cache
def whole() -> Storage:
    """A table of twenty rows, six of them updated, two deleted, one updated twice; tests work on copies."""
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
    """The files whose bytes are broken, those of each kind about as often."""
    paths = [file.path for file in whole().list("") if file.path.rpartition("/")[2] not in LEFT_OUT]
    data = [path for path in paths if not path.startswith(".hoodie/")]
    return [*paths, *data * 3]


@cache
def without_some_blocks(path: str) -> list[Counter[Read]]:
    """The rows of the table when any of the blocks of one log file are missing."""
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
        # A block ends with the count of its footers and its size.
        starts.append(block.offset + block.length + 12)
    return list(zip(starts, [*starts[1:], len(data)], strict=True))


@cache
def unprotected(path: str) -> list[range]:
    """The bytes whose values no length and no checksum tells anything of: keys to delete, and what is parquet."""
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
    """A bit of a file that is flipped, or without bit all from there on cut off."""

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
        """Whether the format lets a reader see it."""
        return self.bit is None or not any(self.at in span for span in unprotected(self.path))


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Return a random damage."""
    path = draw(st.sampled_from(files()))
    at = draw(st.integers(0, max(len(whole().get(path)) - 1, 0)))
    return Damage(path, at, draw(st.one_of(st.none(), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7))))


@examples(200)
@given(damage=damages())
def test_broken_bytes_give_the_right_rows_those_of_whole_blocks_or_an_error(damage: Damage) -> None:
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


def test_missing_blocks_make_a_difference_that_the_test_above_can_see() -> None:
    logs = [path for path in dict.fromkeys(files()) if ".log." in path]
    assert len(logs) == 2
    for path in logs:
        results = without_some_blocks(path)
        assert read(opened(whole())) == results[-1]
        assert all(rows != results[-1] for rows in results[:-1])
