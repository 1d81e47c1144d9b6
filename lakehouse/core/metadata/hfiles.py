"""Open the HFiles of a metadata table on storage; a local file is mapped into memory and not copied."""

from __future__ import annotations

import pyarrow as pa

from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.storage.protocol import Storage


def open_hfile(storage: Storage, path: str) -> HFile:
    """Open a base file. Its index is read now, and its blocks when they are needed.

    The file stays open as long as the value exists.

    Raises:
        NotFoundError: The file does not exist.
        CorruptTableError: The file is damaged; methods of the value raise it too.
    """
    file = storage.open_input(path)
    size, name = file.size(), f"{storage.root}/{path}"
    if isinstance(file, pa.MemoryMappedFile):
        return read_hfile(file.read_buffer(size), name=name)

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    return HFile(read, size, name=name)


def mapped_file(storage: Storage, path: str) -> memoryview | None:
    """Map a file into memory for as long as the result exists. Return None if it cannot be mapped.

    Raises NotFoundError if the file does not exist.
    """
    file = storage.open_input(path)
    if isinstance(file, pa.MemoryMappedFile):
        return memoryview(file.read_buffer(file.size()))
    file.close()
    return None
