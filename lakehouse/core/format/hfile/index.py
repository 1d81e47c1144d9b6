"""Decode the index blocks and the file info of an HFile (MDT-1.3, MDT-1.4).

root index      for each block: i64 offset | i32 size on disk | Hadoop vint L | L bytes of key
inner and leaf  i32 k | (k + 1) x i32 relative offsets | for each block: i64 offset | i32 size | key
key             i16 n | n bytes of content; HBase adds a suffix, which is ignored
meta index      like the root index, but the key is a name without its length
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lakehouse.core.format.hfile.layout import INFO_MAGIC, corrupt, read_hadoop_vint, read_message, read_varint

I64: TypeAlias = NDArray[np.int64]
_PLACE = struct.Struct(">qi")
#: HBase appends the middle key to a root index with several levels: i64 offset, i32 size, i32 number of the entry.
_MIDDLE_KEY_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """Offsets and sizes of blocks, and the first key of each (binary array)."""

    offsets: I64
    sizes: I64
    keys: Any

    def __len__(self) -> int:
        return len(self.offsets)


def decode_root(data: bytes, count: int, name: str, *, plain: bool = False) -> BlockIndex:
    """Decode a root index of `count` entries; `plain` keys have no length prefix, as in the meta index."""
    starts, sizes = _fixed_width(data, count) or _variable_width(data, count, name)
    if len(data) - (int(starts[-1] + sizes[-1]) if count else 0) not in (0, _MIDDLE_KEY_BYTES):
        raise corrupt(name, f"its index does not have {count} entries")
    return _decode_entries(data, starts, sizes, name, plain=plain)


def _fixed_width(data: bytes, count: int) -> tuple[I64, I64] | None:
    """Return starts and sizes of entries that are equally long, or None if they are not.

    If the first entry has L key bytes, and L is also at the position of the length in each further entry of that
    width, then all entries have that width: each position follows from the entry before it.
    """
    width = 13 + data[12] if len(data) > 12 and data[12] < 0x80 else 0
    if width == 0 or count * width > len(data):
        return None
    lengths = np.frombuffer(data, np.uint8, count * width).reshape(count, width)[:, 12]
    if (lengths != data[12]).any():
        return None
    return np.arange(count, dtype=np.int64) * width, np.full(count, width, np.int64)


def _variable_width(data: bytes, count: int, name: str) -> tuple[I64, I64]:
    """Return starts and sizes of entries.

    This takes one step per block of the file, because entries have any length.
    """
    starts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    at = 0
    for number in range(count):
        length, key = read_hadoop_vint(data, at + _PLACE.size, name)
        if key + length > len(data):
            raise corrupt(name, f"entry {number} of an index exceeds its block")
        starts[number], sizes[number] = at, key + length - at
        at = key + length
    return starts, sizes


def decode_leaf(data: bytes, name: str) -> BlockIndex:
    """Decode an inner index block or a leaf index block."""
    count = int.from_bytes(data[:4], "big") if len(data) >= 8 else -1
    base = 4 * (count + 2)
    if count < 1 or base > len(data):
        raise corrupt(name, f"an index block declares {count} entries")
    relative = np.frombuffer(data, ">i4", count + 1, 4).astype(np.int64)
    if relative[0] != 0 or (np.diff(relative) < _PLACE.size).any() or base + int(relative[-1]) > len(data):
        raise corrupt(name, "an index block has entries outside of the block")
    sizes = np.diff(relative)
    return _decode_entries(data, base + relative[:-1], sizes, name, plain=False, has_length=False)


def _decode_entries(  # parameters: positions and form of the entries in one block
    data: bytes, starts: I64, sizes: I64, name: str, *, plain: bool, has_length: bool = True
) -> BlockIndex:
    buffer = np.frombuffer(data, np.uint8)
    offsets = _gather(buffer, starts, ">i8")
    disk = _gather(buffer, starts + 8, ">i4")
    keys = starts + _PLACE.size
    if has_length:
        first = buffer[keys] if len(keys) else np.zeros(0, np.uint8)
        keys = keys + np.where(first < 0x80, 1, 257 - 112 - first.astype(np.int64))
    ends = starts + sizes
    if not plain:
        if (ends - keys < 2).any():
            raise corrupt(name, "an index entry has no key")
        lengths = _gather(buffer, keys, ">i2")
        keys = keys + 2
        if (lengths < 0).any() or (keys + lengths > ends).any():
            raise corrupt(name, "the key of an index entry has a wrong length")
        ends = keys + lengths
    return BlockIndex(offsets, disk, slices(data, keys, ends))


def _gather(buffer: NDArray[np.uint8], positions: I64, dtype: str) -> I64:
    kind = np.dtype(dtype)
    if len(positions) == 0:
        return np.zeros(0, np.int64)
    items: NDArray[Any] = np.ndarray(
        (len(buffer) - kind.itemsize + 1,), f"V{kind.itemsize}", buffer=buffer, strides=(1,)
    )
    return items[positions].view(kind).astype(np.int64)


def slices(data: Any, starts: I64, ends: I64) -> Any:
    """Return ranges of a buffer, ascending and disjoint, as a binary array."""
    bounds = np.stack([starts, ends], axis=1).ravel()
    if len(starts) == 0:
        return pa.array([], pa.binary())
    pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, len(bounds), 2))).cast(pa.binary())


def decode_info(data: bytes, name: str) -> dict[str, bytes]:
    """Decode the file info: string key to bytes."""
    if data[: len(INFO_MAGIC)] != INFO_MAGIC:
        raise corrupt(name, "its file info does not start with PBUF")
    length, start = read_varint(data, len(INFO_MAGIC), name)
    if length != len(data) - start:
        raise corrupt(name, "its file info has a wrong length")
    info: dict[str, bytes] = {}
    for number, pair in read_message(data[start:], name):
        if number == 1 and isinstance(pair, bytes):
            fields = dict(read_message(pair, name))
            key, value = fields.get(1, b""), fields.get(2, b"")
            if not isinstance(key, bytes) or not isinstance(value, bytes):
                raise corrupt(name, "an entry of its file info is not text")
            try:
                info[key.decode()] = value
            except UnicodeDecodeError:
                raise corrupt(name, "a key of its file info is not valid UTF-8") from None
    return info
