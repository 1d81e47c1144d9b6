"""Complete a Parquet file whose footer has a value that is too large to be copied: the bloom filter.

Arrow copies footer values several times while a file is closed. The writer therefore gets a token in place of the
value, and its last bytes are kept back. The footer is then written to the file with the value in place of the token:

    column data | FileMetaData: ... <length><token> ... | length of FileMetaData | PAR1

FileMetaData is encoded in Thrift's compact protocol. A string is its length, as a varint, and its bytes. No enclosing
structure contains its own length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from lakehouse.core.storage.protocol import OutputFile

TOKEN = "d41f8a52-placeholder-of-the-bloom-filter-6c07be93"
_LENGTH = struct.Struct("<I")
_MAGIC = b"PAR1"
# Arrow writes a page header, a page or a part of the footer at a time. Small writes are passed on together.
_BUFFER_BYTES = 128 * 1024


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

    def release(self, size_bytes: int, value: Iterable[bytes]) -> None:
        """Write the kept bytes, with `value`, of `size_bytes`, in place of the token; then pass all bytes on."""
        assert self._held is not None
        held, self._held = b"".join(self._held), None
        (length,) = _LENGTH.unpack_from(held, len(held) - len(_MAGIC) - _LENGTH.size)
        begin, end = len(held) - len(_MAGIC) - _LENGTH.size - length, len(held) - len(_MAGIC) - _LENGTH.size
        token = _string_head(len(TOKEN)) + TOKEN.encode()
        at = held.index(token, begin, end)
        self.write(held[:at])
        written = len(_string_head(size_bytes)) + size_bytes
        self.write(_string_head(size_bytes))
        for piece in value:
            self.write(piece)
        self.write(held[at + len(token) : end])
        self.write(_LENGTH.pack(length - len(token) + written) + _MAGIC)
        self.flush()


def _string_head(size: int) -> bytes:
    """Return the length of a string in Thrift's compact protocol: seven bits per byte, least significant first."""
    head = bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
