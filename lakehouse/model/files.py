"""Data files, file groups and slices (TL-6, DATA-3.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """A base file, identified by its name and partition; `partition` is the partition path, "" if there are none."""

    partition: str
    file_id: str
    write_token: str
    instant: str
    extension: str = "parquet"
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """The file name: `<fileId>_<writeToken>_<instant>.<extension>`."""
        return f"{self.file_id}_{self.write_token}_{self.instant}.{self.extension}"

    @property
    def path(self) -> str:
        """The path relative to the table."""
        return f"{self.partition}/{self.name}" if self.partition else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log file of a merge-on-read file group, identified by its name; `suffix` is ".cdc" for a change log.

    `instant` is the time in the name. It belongs to the delta commit that wrote the file; in table version 6 it belongs
    to the slice's base file, or to the first delta commit in a file group without base file.
    """

    partition: str
    file_id: str
    instant: str
    version: int
    write_token: str
    size_bytes: int = 0
    suffix: str = ""

    @property
    def name(self) -> str:
        """The file name: `.<fileId>_<instant>.log.<version>_<writeToken><suffix>`."""
        return f".{self.file_id}_{self.instant}.log.{self.version}_{self.write_token}{self.suffix}"

    @property
    def path(self) -> str:
        """The path relative to the table."""
        return f"{self.partition}/{self.name}" if self.partition else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """A version of a file group from `base_instant` on: a base file, its log files, or both.

    `logs` are in merge order. Without a base file, `base_instant` is the instant of the first log.
    """

    partition: str
    file_id: str
    base_instant: str
    base: BaseFile | None = None
    logs: tuple[LogFile, ...] = ()

    @property
    def total_log_bytes(self) -> int:
        """The size of all logs in bytes."""
        return sum(log.size_bytes for log in self.logs)

    @property
    def bytes(self) -> int:
        """The size of all files in bytes."""
        return self.total_log_bytes + (self.base.size_bytes if self.base is not None else 0)

    @property
    def latest_instant(self) -> str:
        """The latest instant in the names of the files."""
        return max(self.base_instant, *(log.instant for log in self.logs)) if self.logs else self.base_instant
