"""Layout of an HFile: block headers, variable-length integers, protobuf messages and the trailer (MDT-1).

    data blocks | meta blocks | root data index | meta index | file info | trailer
                              ^ load_on_open
    block       header of 33 bytes | payload | 4 checksum bytes for each 16 KB of header and payload
    trailer     the last 4096 bytes: magic, a protobuf message, zeros, the version

Integers are big-endian. Each decoder checks a length before it uses it, and raises CorruptTableError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lakehouse.errors import CorruptTableError, UnsupportedError

DATA, META, ROOT_INDEX, FILE_INFO = b"DATABLK*", b"METABLKc", b"IDXROOT2", b"FILEINF2"
LEAF_INDEX, INNER_INDEX = b"IDXLEAF2", b"IDXINTE2"
TRAILER_MAGIC, INFO_MAGIC = b'TRABLK"$', b"PBUF"
TRAILER_BYTES = 4096
#: Hudi writes checksum bytes for each piece of this many bytes.
BYTES_PER_CHECKSUM = 16384
NO_CHECKSUM, CRC32, CRC32C = 0, 1, 2
GZ, NONE = 1, 2
CODECS = {0: "LZO", GZ: "GZ", NONE: "NONE", 3: "SNAPPY", 4: "LZ4", 5: "BZIP2", 6: "ZSTD"}
COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
#: The end of each key, after its content: empty column family, timestamp Long.MAX_VALUE, type Put.
KEY_SUFFIX = b"\x00" + b"\x7f" + b"\xff" * 7 + b"\x04"
#: Bytes of a cell without its key content and its value.
CELL_BYTES = 21
#: Key lengths are signed 16-bit integers.
MAX_KEY_BYTES = 2**15 - 1

HEADER = struct.Struct(">8siiqBii")
#: The header as a NumPy record, so that one call decodes the headers of many blocks.
HEADER_DTYPE = np.dtype(
    [
        ("magic", "V8"),
        ("stored", ">i4"),
        ("raw", ">i4"),
        ("previous", ">i8"),
        ("checksum", "u1"),
        ("piece", ">i4"),
        ("data", ">i4"),
    ]
)
HEADER_BYTES = HEADER.size
_MAJOR_VERSION = 3
_ENCRYPTION_KEY = 13
#: zlib's settings for a stream with gzip header and trailer, and for its memory. The allocation of the usual
#: 256 KB takes longer than the compression of some records.
_USUAL_MEMORY, _LITTLE_MEMORY = (31, 8), (29, 5)
_SMALL_BYTES = 8192
#: Level 4 compresses statistics by 4 percent more and takes one and a half times the time.
COMPRESSION_LEVEL = 1


def corrupt(name: str, problem: str) -> CorruptTableError:
    """Return the error for a damaged HFile."""
    return CorruptTableError(f"{name} is not a valid HFile: {problem}", name=name, problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """The fields of a trailer that a reader needs; offsets in bytes."""

    info_offset: int
    load_on_open: int
    raw_bytes: int
    blocks: int
    meta_blocks: int
    entries: int
    levels: int = 1
    first_block: int = 0
    last_block: int = 0
    codec: int = NONE


#: Attribute of `Trailer` for each field number in the message.
_FIELDS = {
    1: "info_offset",
    2: "load_on_open",
    3: "raw_bytes",
    5: "blocks",
    6: "meta_blocks",
    7: "entries",
    8: "levels",
    9: "first_block",
    10: "last_block",
    12: "codec",
}
_REQUIRED = ("info_offset", "load_on_open", "blocks", "meta_blocks", "entries")


def decode_trailer(data: bytes, size: int, name: str) -> Trailer:
    """Decode the last TRAILER_BYTES of an HFile of `size` bytes.

    Raises:
        CorruptTableError: The bytes are not a trailer, or its numbers contradict the file size.
        UnsupportedError: The file uses another version, another codec or encryption.
    """
    if len(data) != TRAILER_BYTES or data[: len(TRAILER_MAGIC)] != TRAILER_MAGIC:
        raise corrupt(name, "its last 4096 bytes are not a trailer")
    version = int.from_bytes(data[-3:], "big")
    if version != _MAJOR_VERSION:
        raise UnsupportedError(f"{name} has version {version} of the HFile format; only version 3 can be read")
    length, start = read_varint(data, len(TRAILER_MAGIC), name)
    if length > TRAILER_BYTES - 4 - start or any(data[start + length : -4]):
        raise corrupt(name, "the message of its trailer has a wrong length")
    values: dict[str, int] = {}
    for number, value in read_message(data[start : start + length], name):
        if number == _ENCRYPTION_KEY:
            raise UnsupportedError(f"{name} is encrypted; encrypted HFiles cannot be read")
        if number in _FIELDS:
            if not isinstance(value, int):
                raise corrupt(name, f"field {number} of its trailer is not a number")
            values[_FIELDS[number]] = value - (1 << 64) if value >= 1 << 63 else value
    missing = [field for field in _REQUIRED if field not in values]
    if missing:
        raise corrupt(name, f"its trailer has no {missing[0]}")
    trailer = Trailer(**{"raw_bytes": 0, **values})
    _check_trailer(trailer, size, name)
    return trailer


def _check_trailer(trailer: Trailer, size: int, name: str) -> None:
    end = size - TRAILER_BYTES
    if trailer.codec not in (GZ, NONE):
        codec = CODECS.get(trailer.codec, str(trailer.codec))
        raise UnsupportedError(f"{name} is compressed with {codec}; only GZ and NONE can be read")
    if not 0 <= trailer.load_on_open <= trailer.info_offset - HEADER_BYTES <= end - 2 * HEADER_BYTES:
        raise corrupt(name, f"its offsets {trailer.load_on_open} and {trailer.info_offset} are outside of the file")
    if not 0 <= trailer.blocks <= size // HEADER_BYTES or not 0 <= trailer.meta_blocks <= size // HEADER_BYTES:
        raise corrupt(name, f"its trailer declares {trailer.blocks} data blocks and {trailer.meta_blocks} meta blocks")
    if trailer.entries < 0 or (trailer.entries > 0) != (trailer.blocks > 0):
        raise corrupt(name, f"its trailer declares {trailer.entries} entries in {trailer.blocks} blocks")
    if not 1 <= trailer.levels <= 16:
        raise corrupt(name, f"its trailer declares {trailer.levels} levels of index blocks")


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the last TRAILER_BYTES of an HFile."""
    fields = [tag + write_varint(getattr(trailer, name)) for tag, name in _TAGS]
    message = b"".join((*fields[:-1], _COMPARATOR_FIELD, fields[-1]))
    content = TRAILER_MAGIC + write_varint(len(message)) + message
    return content.ljust(TRAILER_BYTES - 4, b"\0") + _MAJOR_VERSION.to_bytes(4, "big")


def read_varint(data: bytes, at: int, name: str) -> tuple[int, int]:
    """Return a protobuf varint of at most 64 bits and the position after it."""
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 1 << 64:
            return value, at
        shift += 7
    raise corrupt(name, "a variable-length integer does not end")


_SMALL = [bytes((number,)) for number in range(0x80)]


def write_varint(value: int) -> bytes:
    """Return a protobuf varint; negative numbers as 64 bits."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, content: bytes) -> bytes:
    """Return a protobuf field of bytes."""
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


#: The fields of a trailer, each with the bytes before its number; the comparator precedes the last field.
_TAGS = [(write_varint(number << 3), name) for number, name in _FIELDS.items()]
_COMPARATOR_FIELD = bytes_field(11, COMPARATOR)


def read_message(data: bytes, name: str) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) from a protobuf message with integers and bytes."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at, name)
        value, at = read_varint(data, at, name)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2 and value <= len(data) - at:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise corrupt(name, f"field {tag >> 3} of a message has wire type {tag & 7} or a wrong length")


def read_hadoop_vint(data: bytes, at: int, name: str) -> tuple[int, int]:
    """Return a Hadoop vint that is a length, and the position after it."""
    if at < len(data):
        first = data[at]
        if first < 0x80:
            return first, at + 1
        count = 256 - first - 112  # -113 is followed by one byte, -116 by four
        if 1 <= count <= 4 and at + 1 + count <= len(data):
            return int.from_bytes(data[at + 1 : at + 1 + count], "big"), at + 1 + count
    raise corrupt(name, "an index entry has no valid key length")


def write_hadoop_vint(value: int) -> bytes:
    """Return a Hadoop vint of a length."""
    if value <= 127:
        return bytes([value])
    content = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(content)]) + content


def checksum_bytes(length: int, piece: int = BYTES_PER_CHECKSUM) -> int:
    """Return how many checksum bytes follow a header and payload of `length` bytes."""
    return 4 * -(-length // piece)


def gzipped(raw: bytes | memoryview) -> bytes:
    """Return the bytes as a gzip stream."""
    window, memory = _LITTLE_MEMORY if len(raw) <= _SMALL_BYTES else _USUAL_MEMORY
    stream = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, window, memory)
    return stream.compress(raw) + stream.flush()


def framed_block(magic: bytes, payload: bytes | memoryview, raw_bytes: int, *, checksums: bool) -> bytes:
    """Return a block with its header and checksum bytes; `raw_bytes` is the size of the payload before compression."""
    length = HEADER_BYTES + len(payload)
    size = checksum_bytes(length)
    kind = CRC32 if checksums else NO_CHECKSUM
    block = HEADER.pack(magic, len(payload) + size, raw_bytes, -1, kind, BYTES_PER_CHECKSUM, length) + payload
    return block + (_crc32(block) if checksums else bytes(size))


def index_entry(offset: int, size: int, key: bytes) -> bytes:
    """Return the entry of the root index for a data block, with the first key of the block."""
    return struct.pack(">qi", offset, size) + write_hadoop_vint(len(key) + 2) + struct.pack(">h", len(key)) + key


def info_numbers(count: int, sizes: tuple[int, int], created_ms: int) -> dict[str, bytes]:
    """Return the numbers in a file info; `sizes` are the bytes of all keys and all values."""
    return {
        "hfile.AVG_KEY_LEN": struct.pack(">i", sizes[0] // max(count, 1)),
        "hfile.AVG_VALUE_LEN": struct.pack(">i", sizes[1] // max(count, 1)),
        "hfile.CREATE_TIME_TS": struct.pack(">q", created_ms),
        "KEY_VALUE_VERSION": struct.pack(">i", 1),
        "MAX_MEMSTORE_TS_KEY": struct.pack(">q", 0),
    }


def _crc32(block: bytes) -> bytes:
    pieces = range(0, len(block), BYTES_PER_CHECKSUM)
    return b"".join(zlib.crc32(block[start : start + BYTES_PER_CHECKSUM]).to_bytes(4, "big") for start in pieces)
