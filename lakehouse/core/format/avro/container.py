"""Read Avro object container files of any records, such as the files of a landing zone, into Arrow.

    header   magic | map of metadata: avro.schema, avro.codec | sync marker
    block    count | size | records, compressed by the codec | sync marker

The records of a block have no lengths. Their ends are found by skipping each record with the schema; all records of
several blocks are then decoded together (see `lakehouse.core.format.avro.decode`).
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import fastavro
import numpy as np
import pyarrow as pa

from lakehouse.core.format.avro.bounds import check_schema
from lakehouse.core.format.avro.decode import decode_avro_values
from lakehouse.core.format.avro.nodes import AvroNode, avro_nodes
from lakehouse.core.format.avro.object_file import MAGIC, MAX_INFLATED
from lakehouse.core.format.avro.record_writer import write_bytes, write_long
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError
from lakehouse.model.document import parse_json

#: Number of uncompressed bytes of blocks that are decoded together.
_BATCH_BYTES = 8 << 20
_SYNC_BYTES = 16
#: The maximum sizes of a header and of a compressed block, in bytes.
_MOST_BYTES = 1 << 30
_CHECKSUM_BYTES = 4
_MOST_SHIFT = 63


class ByteSource(Protocol):
    """A file that is read from its beginning."""

    def read(self, nbytes: int = -1, /) -> bytes:
        """Return the next bytes, fewer at the end."""


class AvroContainer:
    """The header of a container file, and its records.

    Attributes:
        schema: The schema of the records as Avro JSON.
        columns: The columns and types of the records.
    """

    def __init__(self, source: ByteSource) -> None:
        """Read the header.

        Raises CorruptTableError for another kind of file, UnsupportedError for a codec or a type that is not supported.
        """
        self._source = source
        magic = source.read(len(MAGIC))
        if magic != MAGIC:
            raise CorruptTableError(f"it begins with {magic!r}; an Avro file begins with {MAGIC!r}")
        metadata = self._metadata()
        self._sync = self._exactly(_SYNC_BYTES)
        try:
            self.schema = metadata["avro.schema"].decode()
            self._declared = parse_json(self.schema)
            check_schema(self._declared)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CorruptTableError(f"its header has no Avro schema that can be read: {error}") from error
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _UNPACK:
            raise UnsupportedError(f"its codec is {codec!r}; supported are {', '.join(_UNPACK)}", codec=codec)
        self._unpack = _UNPACK[codec]
        self.node: AvroNode = avro_nodes(self.schema)
        self.columns: pa.Schema = pa.schema(list(self.node.arrow))
        self._skipping = {**self._declared, "fields": []}

    def batches(self) -> Iterator[pa.Table]:
        """Yield the records of some blocks at a time.

        Raises CorruptTableError for a block that is cut off or damaged.
        """
        waiting: list[tuple[int, bytes]] = []
        size = 0
        for count, data in self._blocks():
            waiting.append((count, data))
            size += len(data)
            if size >= _BATCH_BYTES:
                yield self._decoded(waiting)
                waiting, size = [], 0
        if waiting:
            yield self._decoded(waiting)

    def _decoded(self, blocks: list[tuple[int, bytes]]) -> pa.Table:
        data = b"".join(body for _, body in blocks)
        offsets = np.concatenate([np.zeros(1, np.int64), self._ends(blocks)])
        if int(offsets[-1]) != len(data):
            raise CorruptTableError(f"its records end at byte {offsets[-1]} of {len(data)} bytes of blocks")
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        values = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return decode_avro_values(values, self.node, self.columns.names)

    def _ends(self, blocks: list[tuple[int, bytes]]) -> Any:
        """Return the end of each record in the bytes of all blocks. A compiled reader skips all fields to find it."""
        if self._skipping["type"] == "record" and not self._declared["fields"]:
            raise UnsupportedError("its records have no fields")
        file = bytearray(MAGIC + b"\2")
        write_bytes(file, b"avro.schema")
        write_bytes(file, self.schema.encode())
        file += b"\0" + self._sync
        for count, body in blocks:
            write_long(file, count)
            write_bytes(file, body)
            file += self._sync
        ends, start = [], 0
        try:
            reader: Any = fastavro.block_reader(io.BytesIO(bytes(file)), reader_schema=self._skipping)
            for block in reader:
                position = block.bytes_.tell
                ends.append(np.fromiter((position() for _ in block), np.int64, block.num_records) + start)
                start += len(block.bytes_.getvalue())
        except Exception as error:  # fastavro raises many exception types for damaged bytes
            raise CorruptTableError(f"a block of it cannot be read: {type(error).__name__}: {error}") from error
        return np.concatenate(ends)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        while True:
            count = self._number(may_end=True)
            if count is None:
                return
            size = self._size()
            packed = self._exactly(size)
            if self._exactly(_SYNC_BYTES) != self._sync or count < 0:
                raise CorruptTableError("a block of it does not end with the file's sync marker")
            if not count:
                continue
            try:
                data = self._unpack(packed)
            except LakehouseError:
                raise
            except (zlib.error, OSError, ValueError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
                raise CorruptTableError(f"a block of it cannot be decompressed: {error}") from error
            yield count, data

    def _metadata(self) -> dict[str, bytes]:
        metadata: dict[str, bytes] = {}
        while count := self._number():
            if count < 0:
                self._number()
            for _ in range(abs(count)):
                name = self._exactly(self._size())
                metadata[name.decode(errors="replace")] = self._exactly(self._size())
        return metadata

    def _size(self) -> int:
        size = self._number()
        if size is None or not 0 <= size <= _MOST_BYTES:
            raise CorruptTableError(f"it states a size of {size} bytes")
        return size

    def _number(self, *, may_end: bool = False) -> int | None:
        """Read a varint; return None at the end of the file if it `may_end` here."""
        raw, shift = 0, 0
        while True:
            byte = self._source.read(1)
            if not byte and may_end and not shift:
                return None
            if not byte or shift > _MOST_SHIFT:
                raise CorruptTableError("it is cut off, or it states a number of more than 64 bits")
            raw |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) != size:
            raise CorruptTableError(f"it is cut off: {size} bytes should follow, and {len(data)} do")
        return data


def _limited(data: bytes) -> bytes:
    if len(data) > MAX_INFLATED:
        raise ValueError(f"it expands to more than {MAX_INFLATED} bytes")
    return data


def _inflated(packed: bytes) -> bytes:
    return _limited(zlib.decompressobj(wbits=-zlib.MAX_WBITS).decompress(packed, MAX_INFLATED + 1))


def _from_snappy(packed: bytes) -> bytes:
    """Return the bytes of a snappy block: its size as a varint without sign, and at the end a CRC of the content."""
    size, shift = 0, 0
    for byte in packed:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > MAX_INFLATED:
        raise ValueError(f"it expands to {size} bytes")
    data: bytes = pa.decompress(packed[:-_CHECKSUM_BYTES], size, codec="snappy", asbytes=True)
    if zlib.crc32(data) != int.from_bytes(packed[-_CHECKSUM_BYTES:], "big"):
        raise ValueError("its checksum differs")
    return data


def _from_zstd(packed: bytes) -> bytes:
    return _limited(pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read(MAX_INFLATED + 1))


#: The function that decompresses a block, by the name of its codec.
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflated,
    "snappy": _from_snappy,
    "zstandard": _from_zstd,
    "bzip2": lambda packed: _limited(bz2.BZ2Decompressor().decompress(packed, MAX_INFLATED + 1)),
    "xz": lambda packed: _limited(lzma.LZMADecompressor().decompress(packed, MAX_INFLATED + 1)),
}
