"""Log files that are named after their slice (version 6): which of them belong to one write and may be deleted.

Several writes, and plans of compactions, use the name of a slice. A log file of this package shows its write by its
token (`model.attempt`). Other log files of a write with another instant in the name are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.core.format.file_names import instant_of, is_change_log, write_token_of
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.file_deletions import LOG_INFIX
from lakehouse.model.attempt import is_token_of


def keeps_logs(table: LoadedTable) -> bool:
    """Return whether log files are named after their slice, so that a rollback neutralises them."""
    return table.config.names_logs_by_slice


def is_named_by_slice(path: str, requested: str) -> bool:
    """Return whether this is a log file with another instant in its name than the instant of its write."""
    name = path.rpartition("/")[2]
    return LOG_INFIX in name and not is_change_log(name) and instant_of(name) != requested


def deletable(table: LoadedTable, requested: str, paths: Iterable[str]) -> list[str]:
    """Return the paths without log files that are named after the slice of another instant."""
    if not keeps_logs(table):
        return list(paths)
    return [path for path in paths if not is_named_by_slice(path, requested)]


def deletable_strays(table: LoadedTable, requested: str, paths: Iterable[str]) -> list[str]:
    """Return the paths without log files of other writes; `paths` are files that no commit of the write lists."""
    if not keeps_logs(table):
        return list(paths)
    return [path for path in paths if not is_named_by_slice(path, requested) or is_own_log(path, requested)]


def is_own_log(path: str, requested: str) -> bool:
    """Return whether the token of a log file is derived from the instant of its write."""
    return is_token_of(write_token_of(path), requested)


def own_files(table: LoadedTable, requested: str, paths: Iterable[str]) -> list[str]:
    """Return the paths without log files that other writes appended to the slices of this write."""
    if not keeps_logs(table):
        return list(paths)
    return [path for path in paths if LOG_INFIX not in path or is_change_log(path) or is_own_log(path, requested)]
