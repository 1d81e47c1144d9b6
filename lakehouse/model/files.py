"""Data files, file groups and slices (TL-6, DATA-3.1)."""

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
    """One log file of a merge-on-read group, known by its name; `suffix` is ".cdc" for a log of changes.

    `instant` is the time inside the name: of the delta commit that wrote the file, in version 6 of the base file
    (of a group without one: of its first delta commit) that the file is a log of.
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
        """File name without directory: `.<fileId>_<instant>.log.<version>_<writeToken><suffix>`."""
        return f".{self.file_id}_{self.instant}.log.{self.version}_{self.write_token}{self.suffix}"

    @property
    def path(self) -> str:
        """Path relative to the table's base."""
        return f"{self.partition}/{self.name}" if self.partition else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """The rows of one file group from `base_instant` on: a base file, logs over it, or logs alone.

    `logs` are in the order in which they are merged. Without a base file `base_instant` is that of the first log.
    """

    partition: str
    file_id: str
    base_instant: str
    base: BaseFile | None = None
    logs: tuple[LogFile, ...] = ()

    @property
    def total_log_bytes(self) -> int:
        """Size of all logs."""
        return sum(log.size_bytes for log in self.logs)

    @property
    def latest_instant(self) -> str:
        """The largest instant in the names of its files."""
        return max(self.base_instant, *(log.instant for log in self.logs)) if self.logs else self.base_instant
