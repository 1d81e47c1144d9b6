"""Data files, file groups and slices (format: timeline.md 6, data.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """One base file, known by its name and place; `partition` is the relative partition path, "" at the root."""

    partition: str
    file_id: str
    write_token: str
    instant: str
    extension: str = "parquet"
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """File name without directory: `<fileId>_<writeToken>_<instant>.<extension>`."""
        return f"{self.file_id}_{self.write_token}_{self.instant}.{self.extension}"

    @property
    def path(self) -> str:
        """Path relative to the table's base."""
        return f"{self.partition}/{self.name}" if self.partition else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log file of a merge-on-read group, known by its name; `instant` is the time inside the name."""

    partition: str
    file_id: str
    instant: str
    version: int
    write_token: str
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """File name without directory."""
        return f".{self.file_id}_{self.instant}.log.{self.version}_{self.write_token}"

    @property
    def path(self) -> str:
        """Path relative to the table's base."""
        return f"{self.partition}/{self.name}" if self.partition else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """The rows of one file group from `base_instant` on: a base file, logs over it, or logs alone."""

    partition: str
    file_id: str
    base_instant: str
    base: BaseFile | None = None
    logs: tuple[LogFile, ...] = ()
