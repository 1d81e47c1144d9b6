"""Find files that readers of a listing show although no instant names them: their rows are duplicates or undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.load.unnamed_files import has_old_log_names, unnamed_instants
from lakehouse.core.planning.orphans import Found
from lakehouse.core.planning.restore import slice_paths
from lakehouse.errors import CorruptTableError
from lakehouse.model.files import FileSlice, LogFile
from lakehouse.model.validation import Finding

_UNNAMED = "file.unnamed"


def with_shown_files(
    table: LoadedTable, files: Iterable[Found], slices: Iterable[FileSlice], orphans: Iterable[Finding]
) -> Iterator[Finding]:
    """Yield the orphans, those in slices that readers show as more severe, and shown files of writes that do not exist.

    Args:
        table: The table, with a timeline that was loaded after the listing.
        files: The data files of a listing.
        slices: The newest slices of the listed files.
        orphans: Findings for files of instants that the active timeline reaches.
    """
    shown = {path for file_slice in slices for path in slice_paths(file_slice)}
    for orphan in orphans:
        yield replace(orphan, invariant=_UNNAMED) if orphan.path in shown else orphan
    data = [file.data for file in files if file.data is not None]
    try:
        old = unnamed_instants(table, {file.instant for file in data}).shown
    except (CorruptTableError, pa.ArrowException):
        # Another check reports an archive that cannot be read.
        return
    if not old:
        return
    # The name of a log file of version 6 contains the instant of its slice.
    without_logs = has_old_log_names(table)
    for file in data:
        if file.instant in old and not (without_logs and isinstance(file, LogFile)):
            problem = f"there is no write {file.instant}, neither on the timeline nor in the archive"
            yield Finding(invariant=_UNNAMED, problem=problem, path=file.path, instant=file.instant)
