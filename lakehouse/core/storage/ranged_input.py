"""Random access over byte ranges, in few requests.

A Parquet reader reads the last 8 bytes, then the footer, then column chunks that are often adjacent. The footer of a
Hudi base file contains a bloom filter and has some hundred kilobytes. Therefore the first request reads the tail of the
file, and no later request is smaller than a block:

    |................|======block======|..............|=========tail=========|
                      one request if              the first request, which also returns the size;
                      a read misses               a small file needs no other
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Self

TAIL_BYTES = 1 << 20
BLOCK_BYTES = 1 << 20


class RangeReader:
    """A read-only file object that fetches ranges through `fetch(start, length)`; for one thread at a time."""

    def __init__(self, fetch: Callable[[int, int], bytes], size_bytes: int, tail: bytes) -> None:
        self._fetch = fetch
        self._size = size_bytes
        self._tail = tail
        self._tail_start = size_bytes - len(tail)
        self._block = b""
        self._block_start = 0
        self._position = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def content(self) -> bytes | None:
        """The whole file if the first request returned it, otherwise None."""
        return self._tail if self._tail_start == 0 else None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return self._size

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position like `io.IOBase.seek`."""
        if whence == io.SEEK_CUR:
            position += self._position
        elif whence == io.SEEK_END:
            position += self._size
        if position < 0:
            raise ValueError(f"seek to {position}, before the start of the file")
        self._position = position
        return position

    def read(self, nbytes: int = -1, /) -> bytes:
        """Return the next `nbytes`, fewer at the end of the file; all remaining bytes if negative."""
        if self._closed:
            raise ValueError("read from a closed file")
        left = max(self._size - self._position, 0)
        length = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        data = self._range(self._position, length) if length else b""
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        """Read into the buffer and return the number of bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Release the buffered bytes."""
        self._closed = True
        self._block = self._tail = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def _range(self, start: int, length: int) -> bytes:
        if start >= self._tail_start:
            return self._tail[start - self._tail_start :][:length]
        if start + length > self._tail_start:
            # The buffered tail contains the remaining bytes.
            return self._range(start, self._tail_start - start) + self._tail[: start + length - self._tail_start]
        if not self._block_start <= start <= start + length <= self._block_start + len(self._block):
            wanted = min(max(length, BLOCK_BYTES), self._tail_start - start)
            fetched = self._fetch(start, wanted)
            if len(fetched) < length:
                raise EOFError(f"file ends at byte {start + len(fetched)}, {self._size} expected")
            if len(fetched) > length or length <= BLOCK_BYTES:
                self._block, self._block_start = fetched, start
            else:
                return fetched  # larger than a block: it will not be read again
        return self._block[start - self._block_start :][:length]
