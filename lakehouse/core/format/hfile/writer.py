"""Write HFiles that Apache Hudi, hudi-rs and `reader.py` read (MDT-1).

Cells of a batch are built by one Arrow kernel; then each block is compressed. Entries may arrive in several batches, so
the memory of the writer does not grow with the file.

A small commit writes several files with few entries. They have one data block and are written without kernels, whose
fixed cost is larger than the rest. They consist mainly of the schema in the file info. Its compressed form is cached,
because a gzip stream may contain parts that were compressed earlier.

    gzip header | other pairs of the file info, as they are | schema, compressed once | empty last part | CRC32, length

Hudi's reader ignores cells that start in the last bytes of a block (MDT-1.6). With raw blocks of at most 64 KB no cell
is that short, so larger blocks are refused.

The block size (`Layout`) determines the cost of a look-up, which reads a whole block for each key.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.hfile.entries import (
    ENTRIES,
    Entries,
    entry_bytes,
    entry_count,
    entry_mapping,
    entry_table,
    is_ascending,
)
from lakehouse.core.format.hfile.layout import (
    CELL_BYTES,
    COMPRESSION_LEVEL,
    DATA,
    FILE_INFO,
    GZ,
    INFO_MAGIC,
    KEY_SUFFIX,
    MAX_KEY_BYTES,
    NONE,
    ROOT_INDEX,
    Trailer,
    bytes_field,
    encode_trailer,
    framed_block,
    gzipped,
    index_entry,
    info_numbers,
    write_varint,
)
from lakehouse.errors import UnsupportedError

I64: TypeAlias = NDArray[np.int64]
Compression: TypeAlias = Literal["gz", "none"]

#: Maximum raw block size; Hudi's reader may skip cells of larger blocks.
MAX_BLOCK_BYTES = 65536
#: Maximum file size, because Hudi's reader stores positions as 32-bit integers.
MAX_FILE_BYTES = 2**31 - 1
#: Number of raw bytes of cells that are built together.
_STEP_BYTES = 1 << 25
#: Maximum number of cells that are built one by one.
_FEW_CELLS = 256


#: Keys up to this length are written here, so that the parts that are not compressed fit into one part of gzip.
_ONE_BLOCK_KEY_BYTES = 1024
#: The pairs that a file info has in addition, by default.
NO_INFO: Mapping[str, bytes] = MappingProxyType({})
_CELL_HEAD = struct.Struct(">iih")
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
#: The parts of a gzip stream: whether it is the last one, the length and its complement.
_PART, _END, _TAIL = struct.Struct("<BHH"), b"\1\0\0\xff\xff", struct.Struct("<II")
_NO_BYTES = _GZIP_HEAD + _END + bytes(8)
_RAW_DEFLATE = -15


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the blocks of an HFile are stored.

    Attributes:
        block_bytes: Maximum raw payload of a block with more than one cell; at most 65536.
        compression: `gz`, or `none` for blocks that a look-up reads without decompression.
        checksums: Whether uncompressed blocks have a CRC32, by which a reader detects damage.
    """

    block_bytes: int = MAX_BLOCK_BYTES
    compression: Compression = "gz"
    checksums: bool = True


#: Layout for partitions that are usually read completely, and for log blocks to which LOOKED_UP does not apply.
SCANNED = Layout()
#: Layout for files that are read by key: base files of record_index and secondary indexes, large log files of
#: record_index. A key costs one block of 4 KB and no decompression. In 50 million locations, 100,000 random keys cost
#: 0.8 s of CPU time the first time and 0.4 s once the files are mapped (benchmark key_look_up). Blocks of 64 KB with
#: gzip cost 50 times as much; such files are less than half as large.
LOOKED_UP = Layout(block_bytes=4096, compression="none")


def write_hfile(  # parameters: contents and layout of one file
    entries: Entries,
    *,
    schema: str,
    created_ms: int,
    layout: Layout = SCANNED,
    bounds: bool = False,
) -> bytes:
    """Return the bytes of an HFile. A few entries that fit into one block are written without kernels.

    Args:
        entries: A table with the binary columns `key` and `value`, or a mapping; keys are ascending and distinct.
        schema: Avro schema of the values, as JSON.
        created_ms: Creation time, in milliseconds since 1970.
        layout: Size, compression and checksums of blocks.
        bounds: Whether the file info contains the first and the last key, as in base files.

    Raises:
        ValueError: The keys are not ascending, or the blocks of the layout are too large.
        UnsupportedError: A key or the file is longer than the format allows.
    """
    _check_layout(layout)
    few = _one_block(entries, layout)
    if few is not None:
        return _one_block_hfile(
            few,
            schema=schema,
            created_ms=created_ms,
            compressed=layout.compression == "gz",
            checksums=layout.checksums,
            bounds=bounds,
        )
    pieces: list[bytes] = []
    writer = HFileWriter(pieces.append, schema=schema, created_ms=created_ms, layout=layout, bounds=bounds)
    writer.add(entry_table(entries))
    writer.close()
    return b"".join(pieces)


def _one_block(entries: Entries, layout: Layout) -> Mapping[bytes, bytes] | None:
    """Return the entries if they are few and fit into one block, otherwise None."""
    count = entry_count(entries)
    if count > _FEW_CELLS or entry_bytes(entries) + CELL_BYTES * count > layout.block_bytes:
        return None
    few = entry_mapping(entries)
    # A mapping cannot contain two equal keys; the general writer refuses them.
    return few if len(few) == count and max(map(len, few), default=0) <= _ONE_BLOCK_KEY_BYTES else None


def _check_layout(layout: Layout) -> None:
    if not CELL_BYTES <= layout.block_bytes <= MAX_BLOCK_BYTES:
        raise ValueError(f"block_bytes is {layout.block_bytes}; Hudi reads blocks of at most 65536 bytes completely")


class HFileWriter:
    """Writes one HFile from batches of ascending entries to a function that takes bytes.

    `info` are more pairs for the file info, which omits an empty `schema`. Otherwise it takes the
    arguments of `write_hfile` and raises the same errors.
    """

    def __init__(
        self,
        sink: Callable[[bytes], object],
        *,
        schema: str,
        created_ms: int,
        layout: Layout,
        bounds: bool,
        info: Mapping[str, bytes] = NO_INFO,
    ) -> None:  # parameters: as of `write_hfile`, with more pairs for the file info
        _check_layout(layout)
        self._sink = sink
        self._schema = schema
        self._created_ms = created_ms
        self._layout = layout
        self._has_bounds = bounds
        self._more_info = info
        self._codec = GZ if layout.compression == "gz" else NONE
        self._rest = ENTRIES.empty_table()
        self._size = self._count = self._key_bytes = self._value_bytes = self._raw_bytes = 0
        self._first_key: bytes | None = None
        self._last_key: bytes | None = None
        self._index: list[tuple[int, int, bytes]] = []

    def add(self, entries: pa.Table) -> None:
        """Append entries; their keys follow all keys that were added before."""
        if entries.num_rows == 0:
            return
        keys = entries.column("key").combine_chunks()
        self._check_keys(keys)
        entries = pa.concat_tables([self._rest, pa.Table.from_arrays([keys, entries.column("value")], schema=ENTRIES)])
        keys, values = (entries.column(name).combine_chunks() for name in ENTRIES.names)
        ends = np.cumsum(_lengths(keys) + _lengths(values) + CELL_BYTES)
        firsts = _first_rows(ends, self._layout.block_bytes)
        last = firsts[-1]
        for step in _steps(firsts, ends):
            begin, end = step[0], step[-1]
            self._write_blocks(keys[begin:end], values[begin:end], [first - begin for first in step])
        # More cells may follow in the last block.
        self._rest = entries.slice(last)

    def close(self) -> int:
        """Write the remaining entries, the index and the trailer; return the size of the file in bytes."""
        if self._rest.num_rows:
            keys, values = (self._rest.column(name).combine_chunks() for name in ENTRIES.names)
            self._write_blocks(keys, values, [0, len(keys)])
        load_on_open = self._size
        index = b"".join(index_entry(*entry) for entry in self._index)
        self._write_block(ROOT_INDEX, index)
        self._write_block(ROOT_INDEX, b"")
        info_offset = self._size
        self._write_block(FILE_INFO, self._info())
        trailer = Trailer(
            info_offset=info_offset,
            load_on_open=load_on_open,
            raw_bytes=self._raw_bytes,
            blocks=len(self._index),
            meta_blocks=0,
            entries=self._count,
            first_block=self._index[0][0] if self._index else -1,
            last_block=self._index[-1][0] if self._index else 0,
            codec=self._codec,
        )
        self._put(encode_trailer(trailer))
        return self._size

    def _check_keys(self, keys: Any) -> None:
        before = pa.array([] if self._last_key is None else [self._last_key], pa.binary())
        chain = pa.concat_arrays([before, keys])
        if not is_ascending(chain):
            bad = int(np.argmin(np.asarray(pc.less(chain[:-1], chain[1:]))))
            raise ValueError(
                f"key {chain[bad + 1].as_py()!r} does not follow {chain[bad].as_py()!r} in ascending order"
            )
        longest = pc.max(pc.binary_length(keys)).as_py()
        if longest > MAX_KEY_BYTES:
            raise _too_long(longest)
        if self._first_key is None:
            self._first_key = keys[0].as_py()
        self._last_key = keys[-1].as_py()

    def _write_blocks(self, keys: Any, values: Any, firsts: list[int]) -> None:
        """Write blocks that start at these rows; the last number is the end of the last block."""
        key_lengths, value_lengths = _lengths(keys), _lengths(values)
        cells = _cells(keys, values, key_lengths, value_lengths)
        bounds = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(key_lengths + value_lengths + CELL_BYTES, out=bounds[1:])
        edges = bounds[firsts].tolist()
        for first, start, end in zip(firsts[:-1], edges[:-1], edges[1:], strict=True):
            offset = self._size
            self._write_block(DATA, cells[start:end])
            self._index.append((offset, self._size - offset, keys[first].as_py()))
        self._count += len(keys)
        self._key_bytes += int(key_lengths.sum())
        self._value_bytes += int(value_lengths.sum())
        self._raw_bytes += len(cells)

    def _write_block(self, magic: bytes, raw: Any) -> None:
        payload = gzipped(raw) if self._codec == GZ else raw
        has_checksums = self._codec == NONE and self._layout.checksums
        self._put(framed_block(magic, payload, len(raw), checksums=has_checksums))

    def _put(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_FILE_BYTES:
            raise UnsupportedError("an HFile would have 2 GB or more, which Hudi cannot read; use more file groups")
        self._sink(data)

    def _info(self) -> bytes:
        last = self._last_key
        pairs = {
            "hfile.LASTKEY": b"" if last is None else struct.pack(">h", len(last)) + last,
            **info_numbers(self._count, (self._key_bytes, self._value_bytes), self._created_ms),
            **({"schema": self._schema.encode()} if self._schema else {}),
            **self._more_info,
        }
        if self._has_bounds:
            pairs |= {"minRecordKey": self._first_key or b"", "maxRecordKey": last or b""}
        message = b"".join(
            bytes_field(1, bytes_field(1, key.encode()) + bytes_field(2, value)) for key, value in pairs.items()
        )
        return INFO_MAGIC + write_varint(len(message)) + message


def _too_long(longest: int) -> UnsupportedError:
    return UnsupportedError(f"a key has {longest} bytes; HFiles of Hudi have keys of at most 32767 bytes")


def _lengths(column: Any) -> I64:
    return np.asarray(pc.binary_length(column)).astype(np.int64)


def _first_rows(ends: I64, block_bytes: int) -> list[int]:
    """Return the first row of each block; `ends` are cumulated sizes of cells."""
    firsts, before = [0], 0
    while True:
        following = int(np.searchsorted(ends, before + block_bytes, "right"))
        row = max(following, firsts[-1] + 1)  # a cell larger than a block is alone in its block
        if row >= len(ends):
            return firsts
        firsts.append(row)
        before = int(ends[row - 1])


def _steps(firsts: list[int], ends: I64) -> list[list[int]]:
    """Group the complete blocks, which are all but the last one, by about _STEP_BYTES.

    Each group lists the first rows of its blocks, and the end of the last one.
    """
    if len(firsts) == 1:
        return []
    group = ends[np.array(firsts[1:]) - 1] // _STEP_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(firsts) - 1]
    return [firsts[begin : end + 1] for begin, end in pairwise(cuts)]


def _cells(keys: Any, values: Any, key_lengths: I64, value_lengths: I64) -> Any:
    """Return the cells of all rows, concatenated, as a memoryview."""
    heads = np.zeros(len(keys), np.dtype([("key", ">i4"), ("value", ">i4"), ("content", ">i2")]))
    heads["key"], heads["value"] = key_lengths + 2 + len(KEY_SUFFIX), value_lengths
    heads["content"] = key_lengths
    offsets = np.arange(len(keys) + 1, dtype=np.int64) * heads.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(heads.view(np.uint8))]
    prefix = pa.Array.from_buffers(pa.large_binary(), len(keys), buffers)
    large = pa.large_binary()
    suffix, end, separator = (pa.scalar(text, large) for text in (KEY_SUFFIX, b"\0", b""))
    joined = pc.binary_join_element_wise(prefix, keys.cast(large), suffix, values.cast(large), end, separator)
    return memoryview(joined.buffers()[2])


def _one_block_hfile(  # parameters: contents and layout of one file
    entries: Mapping[bytes, bytes],
    *,
    schema: str,
    created_ms: int,
    compressed: bool,
    checksums: bool,
    bounds: bool,
) -> bytes:
    """Return the HFile of entries that fit into one block, with the arguments of `write_hfile`.

    Raises ValueError if the keys are not ascending. No key is longer than _ONE_BLOCK_KEY_BYTES.
    """
    pieces: list[bytes] = []
    before: bytes | None = None
    for key, value in entries.items():
        if before is not None and before >= key:
            raise ValueError(f"key {key!r} does not follow {before!r} in ascending order")
        size = len(key) + 2 + len(KEY_SUFFIX)
        pieces += (_CELL_HEAD.pack(size, len(value), len(key)), key, KEY_SUFFIX, value, b"\0")
        before = key
    cells = b"".join(pieces)
    has_checksums = checksums and not compressed
    blocks, size = [], 0

    def add(magic: bytes, payload: bytes, raw_bytes: int) -> None:
        nonlocal size
        blocks.append(framed_block(magic, payload, raw_bytes, checksums=has_checksums))
        size += len(blocks[-1])

    if entries:
        add(DATA, gzipped(cells) if compressed else cells, len(cells))
    load_on_open = size
    index = index_entry(0, load_on_open, next(iter(entries))) if entries else b""
    add(ROOT_INDEX, _stored(index) if compressed else index, len(index))
    add(ROOT_INDEX, _NO_BYTES if compressed else b"", 0)
    info_offset = size
    info = _one_block_info(entries, created_ms, schema, bounds=bounds)
    raw = b"".join(info)
    add(FILE_INFO, _gzipped_info(info, raw, schema) if compressed else raw, len(raw))
    trailer = Trailer(
        info_offset=info_offset,
        load_on_open=load_on_open,
        raw_bytes=len(cells),
        blocks=1 if entries else 0,
        meta_blocks=0,
        entries=len(entries),
        first_block=0 if entries else -1,
        last_block=0,
        codec=GZ if compressed else NONE,
    )
    return b"".join((*blocks, encode_trailer(trailer)))


def _one_block_info(
    entries: Mapping[bytes, bytes], created_ms: int, schema: str, *, bounds: bool
) -> tuple[bytes, bytes, bytes]:
    """Return the file info: the pairs before the schema, the schema, and the pairs after it."""
    keys = [*entries]
    last = keys[-1] if keys else b""
    sizes = (sum(map(len, keys)), sum(map(len, entries.values())))
    numbers = info_numbers(len(keys), sizes, created_ms)
    head = [_pair("hfile.LASTKEY", struct.pack(">h", len(last)) + last if keys else b"")]
    head += [_pair(name, value) for name, value in numbers.items()]
    own = _schema(schema)[0]
    tail = _pair("minRecordKey", keys[0] if keys else b"") + _pair("maxRecordKey", last) if bounds else b""
    message = b"".join(head)
    return INFO_MAGIC + write_varint(len(message) + len(own) + len(tail)) + message, own, tail


def _gzipped_info(info: tuple[bytes, bytes, bytes], raw: bytes, schema: str) -> bytes:
    head, _, tail = info
    parts = (_GZIP_HEAD, _part(head), _schema(schema)[1], _part(tail), _END)
    return b"".join((*parts, _TAIL.pack(zlib.crc32(raw), len(raw))))


def _stored(raw: bytes) -> bytes:
    """Return a gzip stream that contains the bytes as they are."""
    return b"".join((_GZIP_HEAD, _part(raw), _END, _TAIL.pack(zlib.crc32(raw), len(raw))))


def _part(raw: bytes) -> bytes:
    return _PART.pack(0, len(raw), 0xFFFF ^ len(raw)) + raw


@lru_cache(maxsize=8)
def _schema(schema: str) -> tuple[bytes, bytes]:
    """Return the file info pair of the schema, and its compressed form as a byte-aligned part of a gzip stream."""
    raw = _pair("schema", schema.encode())
    stream = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    return raw, stream.compress(raw) + stream.flush(zlib.Z_FULL_FLUSH)


def _pair(name: str, value: bytes) -> bytes:
    return _pair_head(name, len(value)) + value


@lru_cache(maxsize=256)
def _pair_head(name: str, length: int) -> bytes:
    """Return the bytes of a file info pair before its value."""
    inner = bytes_field(1, name.encode()) + write_varint(2 << 3 | 2) + write_varint(length)
    return write_varint(1 << 3 | 2) + write_varint(len(inner) + length) + inner
