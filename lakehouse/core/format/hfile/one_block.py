"""Write HFiles of few entries: one data block, without kernels, whose fixed cost is larger than the rest (MDT-1).

A small commit writes several such files, and their largest part is the schema in the file info. Its compressed form is
kept: a gzip stream may contain parts that were compressed before.

    gzip header | other pairs of the file info, as they are | schema, compressed once | empty last part | CRC32, length
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache

from lakehouse.core.format.hfile.layout import (
    COMPRESSION_LEVEL,
    DATA,
    FILE_INFO,
    GZ,
    INFO_MAGIC,
    KEY_SUFFIX,
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

#: Keys up to this length are written here, so that the parts that are not compressed fit into one part of gzip.
MAX_ONE_BLOCK_KEY_BYTES = 1024
_CELL_HEAD = struct.Struct(">iih")
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
#: The parts of a gzip stream: whether it is the last one, the length and its complement.
_PART, _END, _TAIL = struct.Struct("<BHH"), b"\1\0\0\xff\xff", struct.Struct("<II")
_NO_BYTES = _GZIP_HEAD + _END + bytes(8)
_RAW_DEFLATE = -15


def one_block_hfile(  # parameters: contents and layout of one file
    entries: Mapping[bytes, bytes],
    *,
    schema: str,
    created_ms: int,
    compressed: bool,
    checksums: bool,
    bounds: bool,
) -> bytes:
    """Return the HFile of entries that fit into one block; the arguments are those of `write_hfile`.

    The keys have at most MAX_ONE_BLOCK_KEY_BYTES bytes. Raises ValueError if they are not ascending.
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
    info = _info(entries, created_ms, schema, bounds=bounds)
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


def _info(entries: Mapping[bytes, bytes], created_ms: int, schema: str, *, bounds: bool) -> tuple[bytes, bytes, bytes]:
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
    """Return the pair of the schema, and it as a part of a gzip stream that ends at a byte."""
    raw = _pair("schema", schema.encode())
    stream = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    return raw, stream.compress(raw) + stream.flush(zlib.Z_FULL_FLUSH)


def _pair(name: str, value: bytes) -> bytes:
    return _pair_head(name, len(value)) + value


@lru_cache(maxsize=256)
def _pair_head(name: str, length: int) -> bytes:
    """Return the bytes of a pair of the file info before its value."""
    inner = bytes_field(1, name.encode()) + write_varint(2 << 3 | 2) + write_varint(length)
    return write_varint(1 << 3 | 2) + write_varint(len(inner) + length) + inner
