"""Keep the small files that only one write uses in memory, if all tasks of the write run in this process.

staged rows, matches     written once and read several times. They stay in memory up to a limit; the rest goes to
                         storage as before.
small base files         read by the key look-up and again by the rewrite. A file that the first request returned
                         completely is kept up to a limit.

No other process reads the staged rows of a write: a write that crashed is rolled back, not continued. Base files of
commits never change.
"""

from __future__ import annotations

import io
import threading
from typing import Any, NoReturn, cast

import pyarrow as pa

from lakehouse.core.storage.atomic_output import AtomicOutput
from lakehouse.core.storage.protocol import InputFile, OutputFile, Storage
from lakehouse.core.storage.ranged_input import RangeReader

_STAGING = ".hoodie/.staging/"
#: Maximum size of the staged files, and of the base files, of one write in memory.
_MOST_BYTES = 8 << 20
#: The share of a task's memory budget that each of both may take.
_SHARE = 32


class NearFiles:
    """The storage of a table for the tasks of one write; all other files and methods are those of the inner storage."""

    def __init__(self, inner: Storage, budget_bytes: int) -> None:
        self._inner = inner
        self._most = min(_MOST_BYTES, budget_bytes // _SHARE)
        self._lock = threading.Lock()
        self._staged: dict[str, pa.Buffer] = {}
        self._read: dict[str, bytes] = {}
        self._staged_bytes = self._read_bytes = 0
        #: Whether a staged file did not fit and was written to the inner storage.
        self.spills = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> NoReturn:
        raise TypeError("files in memory cannot be sent to another process")

    def open_output(self, path: str) -> OutputFile:
        """Open a file for writing. A staged file that fits stays in memory."""
        if not path.startswith(_STAGING):
            return self._inner.open_output(path)
        output = _Staged(self, path)
        return AtomicOutput(output, output.publish, output.discard)

    def open_input(self, path: str) -> InputFile:
        """Open a file from memory if it is there."""
        staged = self._staged.get(path)
        if staged is not None:
            return cast(InputFile, pa.BufferReader(staged))
        whole = self._read.get(path)
        if whole is not None:
            return cast(InputFile, pa.BufferReader(whole))
        file = self._inner.open_input(path)
        if isinstance(file, RangeReader) and file.content is not None:
            self._keep_read(path, file.content)
        return file

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return bytes of a file."""
        staged = self._staged.get(path)
        if staged is None:
            return self._inner.get_range(path, start, length)
        return bytes(staged.slice(start, min(length, staged.size - start)).to_pybytes())

    def fits(self, size: int) -> bool:
        """Return whether a staged file of this size fits into memory."""
        return self._staged_bytes + size <= self._most

    def keep_staged(self, path: str, data: bytes) -> bool:
        """Keep a staged file, unless it no longer fits."""
        with self._lock:
            before = self._staged.pop(path, None)
            self._staged_bytes += len(data) - (0 if before is None else before.size)
            if self._staged_bytes <= self._most:
                self._staged[path] = pa.py_buffer(data)
                return True
            self._staged_bytes -= len(data)
            return False

    def open_spilled(self, path: str) -> OutputFile:
        """Open a staged file of the inner storage."""
        self.spills = True
        return self._inner.open_output(path)

    def _keep_read(self, path: str, content: bytes) -> None:
        with self._lock:
            if path not in self._read and self._read_bytes + len(content) <= self._most:
                self._read[path] = content
                self._read_bytes += len(content)


class _Staged:
    """A sink that collects a file in memory, and continues in the inner storage when it no longer fits."""

    def __init__(self, files: NearFiles, path: str) -> None:
        self._files, self._path = files, path
        self._buffer = io.BytesIO()
        self._spilled: OutputFile | None = None

    def write(self, data: Any) -> None:
        """Append bytes."""
        if self._spilled is None and not self._files.fits(self._buffer.tell() + len(data)):
            self._spill()
        if self._spilled is None:
            self._buffer.write(data)
        else:
            self._spilled.write(data)

    def publish(self) -> None:
        """Give the file its name."""
        if self._spilled is None and not self._files.keep_staged(self._path, self._buffer.getvalue()):
            self._spill()
        if self._spilled is not None:
            self._spilled.close()

    def discard(self) -> None:
        """Drop the bytes."""
        if self._spilled is not None:
            self._spilled.abort()

    def _spill(self) -> None:
        self._spilled = self._files.open_spilled(self._path)
        self._spilled.write(self._buffer.getbuffer())
        self._buffer = io.BytesIO()
