"""Completing a parquet file whose footer holds one value too large to be copied about: the bloom filter.

Arrow copies footer values half a dozen times while a file is closed. So the writer is given a token in place of the
value, its last bytes are held back, and the footer goes to the file with the value where the token stands:

    column data | FileMetaData: ... <length><token> ... | length of FileMetaData | PAR1

FileMetaData is in Thrift's compact protocol: a string is its length, as a varint, and its bytes, and nothing around it
says how long it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from lakehouse.core.storage.protocol import OutputFile

TOKEN = "d41f8a52-placeholder-of-the-bloom-filter-6c07be93"
_LENGTH = struct.Struct("<I")
_MAGIC = b"PAR1"


class FooterSink:
    """What a parquet writer writes to; from `hold` on, bytes wait for `release`."""

    def __init__(self, sink: OutputFile) -> None:
        self._sink = sink
        self._held: list[bytes] | None = None

    @property
    def closed(self) -> bool:
        """Whether the file is closed; the writer does not close it."""
        return self._sink.closed

    def write(self, data: Any) -> int:
        """Pass the bytes on, or hold them."""
        if self._held is None:
            return self._sink.write(data)
        self._held.append(bytes(data))
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were passed on."""
        return self._sink.tell()

    def flush(self) -> None:
        """Pass on, as far as that goes."""
        self._sink.flush()

    def close(self) -> None:
        """Leave the file open: it is closed by whom it belongs to."""

    def hold(self) -> None:
        """Hold what is written next; call before the parquet writer is closed."""
        self._held = []

    def release(self, size_bytes: int, value: Iterable[bytes]) -> None:
        """Pass on what was held with `value`, of so many bytes, in place of the token."""
        assert self._held is not None
        held, self._held = b"".join(self._held), None
        (length,) = _LENGTH.unpack_from(held, len(held) - len(_MAGIC) - _LENGTH.size)
        begin, end = len(held) - len(_MAGIC) - _LENGTH.size - length, len(held) - len(_MAGIC) - _LENGTH.size
        token = _string_head(len(TOKEN)) + TOKEN.encode()
        at = held.index(token, begin, end)
        self._sink.write(held[:at])
        written = len(_string_head(size_bytes)) + size_bytes
        self._sink.write(_string_head(size_bytes))
        for piece in value:
            self._sink.write(piece)
        self._sink.write(held[at + len(token) : end])
        self._sink.write(_LENGTH.pack(length - len(token) + written) + _MAGIC)


def _string_head(size: int) -> bytes:
    """Return the length of a string as Thrift's compact protocol writes it: seven bits a byte, least first."""
    head = bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
