"""A store as S3 was before conditional puts: it takes the condition of a write, and writes whether it holds or not."""

from __future__ import annotations

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage


class UnconditionalStorage(MemoryStorage):
    """Objects in memory under an address of S3, so that nobody takes them for those of a store that is ours."""

    def __init__(self, of: Storage | None = None) -> None:
        super().__init__()
        self.root = self.root.replace("memory://", "s3://before-2024/")
        for file in of.list("") if of is not None else ():
            assert of is not None
            self.put(file.path, of.get(file.path))

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Write, and say that nobody had the name."""
        self.put(path, data)
        return True

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write, whatever version is there."""
        self.put(path, data)
        return self.get_tagged(path)[1]
