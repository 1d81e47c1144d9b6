"""Apply the rule for folders without data files in the files source: skip, fail or wait. Pure.

A folder that does not exist and a folder without data files are treated alike: the data has not arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.errors import SourceMissingError, UserError
from lakehouse.platform.sources.files.file_listing import FolderListing
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.sources.file_source import FileSourceSpec

#: The maximum number of folders in a message.
_NAMED = 3


def check_missing(folders: Sequence[FolderListing], settings: FileSourceSpec) -> None:
    """Apply `ingest.missing` to a run's folders without data files.

    Without the setting, a path that is read by interval fails, because no later run reads the gap. A path that is read
    by checkpoint must exist, and may be empty between two deliveries.

    Raises:
        SourceMissingError: `missing: wait`; the same run has to be repeated later.
        UserError: `missing: fail`.
    """
    missing = [folder for folder in folders if not folder.files]
    if settings.missing is None and not settings.is_by_interval:
        missing = [folder for folder in missing if not folder.exists]
    if not missing or settings.missing == "skip":
        return
    message = _message(missing, len(folders))
    if settings.missing == "wait":
        raise SourceMissingError(
            f"{message}; waiting for up to {duration_text(settings.wait_for_s)} in all (ingest.wait_for)",
            wait_for_s=settings.wait_for_s,
            path=missing[0].path,
        )
    raise UserError(
        f"{message}. Check ingest.path, or set a rule in the spec: `missing: wait` repeats the run until the data is "
        "there, `missing: skip` continues without it",
        path=missing[0].path,
    )


def _message(missing: Sequence[FolderListing], total: int) -> str:
    names = ", ".join(
        f"no data files in {folder.path!r}" if folder.exists else f"there is no file or directory {folder.path!r}"
        for folder in missing[:_NAMED]
    )
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    share = f"{len(missing)} of {total} folders have nothing to read: " if total > 1 else ""
    return f"ingest.path: {share}{names}{more}"
