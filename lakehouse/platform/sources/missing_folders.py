"""What a run does about folders of its source that have nothing to read: go on, fail or wait. Pure.

A folder that is not there and one without data files are the same thing here: the data has not arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.errors import SourceMissingError, UserError
from lakehouse.platform.sources.files import SourceFolder
from lakehouse.spec.ingest import IngestSpec
from lakehouse.spec.quantities import duration_text

#: Folders that a message names.
_NAMED = 3


def check_missing(folders: Sequence[SourceFolder], ingest: IngestSpec) -> None:
    """Apply `ingest.missing` to the folders of a run that have nothing to read.

    Without the setting a path that is read by interval fails, because a gap would never be read. One that is read by
    checkpoint may be empty between two deliveries, and must exist.

    Raises:
        SourceMissingError: `missing: wait`; the same run is to look again later.
        UserError: `missing: fail`.
    """
    absent = [folder for folder in folders if not folder.files]
    if ingest.missing is None and not ingest.is_by_interval:
        absent = [folder for folder in absent if not folder.exists]
    if not absent or ingest.missing == "skip":
        return
    told = _told(absent, len(folders))
    if ingest.missing == "wait":
        raise SourceMissingError(
            f"{told}; waiting for it, up to {duration_text(ingest.wait_for_s)} in all (ingest.wait_for)",
            wait_for_s=ingest.wait_for_s,
            path=absent[0].path,
        )
    raise UserError(
        f"{told}. Check ingest.path, or say what to do in the spec: `missing: wait` looks again until it is there, "
        "`missing: skip` goes on without it",
        path=absent[0].path,
    )


def _told(absent: Sequence[SourceFolder], total: int) -> str:
    names = ", ".join(
        f"no data files in {folder.path!r}" if folder.exists else f"there is no file or directory {folder.path!r}"
        for folder in absent[:_NAMED]
    )
    more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    share = f"{len(absent)} of {total} folders have nothing to read: " if total > 1 else ""
    return f"ingest.path: {share}{names}{more}"
