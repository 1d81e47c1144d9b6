"""Change the footer of a Parquet file before it is written: add the bloom filter, omit bounds that ignore NaN.

Arrow copies footer values several times while a file is closed, and a bloom filter is too large for that. The writer
therefore receives a token instead of the value, and its last bytes are held back. Then the footer is written to the
file with the value instead of the token:

    column data | FileMetaData: ... <length><token> ... | length of FileMetaData | PAR1

FileMetaData is encoded in Thrift's compact protocol. A string is its length, as a varint, and its bytes. No enclosing
structure contains its own length.

Arrow computes bounds without NaN. In Spark and Hudi NaN is greater than all numbers, and they skip row groups by
bounds, so they would lose rows. Their own writer omits the bounds of a column with NaN (DATA-3).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Any

from lakehouse.core.format.parquet.thrift_compact import Struct, decode_struct, encode_struct
from lakehouse.core.storage.protocol import OutputFile

TOKEN = "d41f8a52-placeholder-of-the-bloom-filter-6c07be93"
_LENGTH = struct.Struct("<I")
_MAGIC = b"PAR1"
# Arrow writes a page header, a page or a part of the footer at a time. Small writes are passed on together.
_BUFFER_BYTES = 128 * 1024
# Ids of footer fields: row groups, their column chunks, metadata, path and statistics of a chunk, and the bounds, of
# which two are deprecated.
_GROUPS, _COLUMNS, _CHUNK, _PATH, _STATISTICS, _BOUNDS = 4, 1, 3, 3, 12, (1, 2, 5, 6, 7, 8)


class FooterSink:
    """The output of a Parquet writer, which collects small writes; after `hold`, bytes are kept until `release`."""

    def __init__(self, sink: OutputFile) -> None:
        self._sink = sink
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._held: list[bytes] | None = None

    @property
    def closed(self) -> bool:
        """Whether the file is closed; the writer does not close it."""
        return self._sink.closed

    def write(self, data: Any) -> int:
        """Write the bytes, or keep them after `hold`."""
        size = len(data)
        if self._held is not None:
            self._held.append(bytes(data))
        elif size >= _BUFFER_BYTES:
            self.flush()
            self._sink.write(data)
        else:
            self._small.append(bytes(data))
            self._small_bytes += size
            if self._small_bytes >= _BUFFER_BYTES:
                self.flush()
        return size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._sink.tell() + self._small_bytes

    def flush(self) -> None:
        """Pass collected bytes on."""
        if self._small:
            data, self._small, self._small_bytes = b"".join(self._small), [], 0
            self._sink.write(data)

    def close(self) -> None:
        """Do nothing: the owner of the output closes it."""

    def hold(self) -> None:
        """Keep the bytes written from now on. Call it before the Parquet writer is closed."""
        self._held = []

    def omit_bounds(self, columns: Collection[str]) -> None:
        """Remove the bounds of these columns, given by dotted paths, from the kept footer."""
        held, begin, end = self._kept()
        data = encode_struct(without_bounds(decode_struct(held[begin:end]), columns))
        self._held = [held[:begin], data, _LENGTH.pack(len(data)) + _MAGIC]

    def release(self, size_bytes: int = 0, value: Iterable[bytes] | None = None) -> None:
        """Write the kept bytes, with `value`, of `size_bytes`, in place of the token; then pass all bytes on."""
        held, begin, end = self._kept()
        self._held = None
        if value is None:
            self.write(held)
        else:
            token = _string_head(len(TOKEN)) + TOKEN.encode()
            at = held.index(token, begin, end)
            self.write(held[:at])
            written = len(_string_head(size_bytes)) + size_bytes
            self.write(_string_head(size_bytes))
            for piece in value:
                self.write(piece)
            self.write(held[at + len(token) : end])
            self.write(_LENGTH.pack(end - begin - len(token) + written) + _MAGIC)
        self.flush()

    def _kept(self) -> tuple[bytes, int, int]:
        """Return the held bytes, and the start and end of the footer in them."""
        assert self._held is not None
        held = b"".join(self._held)
        end = len(held) - len(_MAGIC) - _LENGTH.size
        (length,) = _LENGTH.unpack_from(held, end)
        return held, end - length, end


def without_bounds(footer: Struct, columns: Collection[str]) -> Struct:
    """Return a footer in which the column chunks of these columns have no bounds; counts of nulls remain."""
    for group in footer.structs(_GROUPS):
        for chunk in group.structs(_COLUMNS):
            meta = chunk.get(_CHUNK)
            if ".".join(name.decode() for name in meta.get(_PATH)[1]) in columns and meta.get(_STATISTICS) is not None:
                meta.get(_STATISTICS).drop(*_BOUNDS)
    return footer


def _string_head(size: int) -> bytes:
    """Return the length of a string in Thrift's compact protocol: seven bits per byte, low bits first."""
    head = bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
