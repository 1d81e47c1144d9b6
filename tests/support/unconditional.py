"""Storage like S3 before conditional puts: it ignores the condition of a write."""

from __future__ import annotations

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage


class UnconditionalStorage(MemoryStorage):
    """A memory store with an S3 address, so that code under test treats it as S3."""

    def __init__(self, of: Storage | None = None) -> None:
        super().__init__()
        self.root = self.root.replace("memory://", "s3://before-2024/")
        for file in of.list("") if of is not None else ():
            assert of is not None
            self.put(file.path, of.get(file.path))

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Write the object, and report that it did not exist before."""
        self.put(path, data)
        return True

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the object without comparing the tag."""
        self.put(path, data)
        return self.get_tagged(path)[1]
