"""Check the settings and the storage of the files source, without listing files and without a Spark session."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.platform.sources.files.file_columns import check_format, file_source_of
from lakehouse.platform.sources.files.file_listing import FolderListing
from lakehouse.platform.sources.files.file_paths import interval_paths, split_path
from lakehouse.platform.sources.files.missing_folders import check_missing
from lakehouse.platform.sources.source import Interval
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.table_spec import TableSpec

#: The name of an object that does not exist: the answer "not found" shows that the bucket can be read.
_ABSENT = ".lakehouse-check"


def check_files_source(
    spec: TableSpec, interval: Interval | None, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> None:
    """Check the reader options, the paths of the run and the access to their storage.

    Raises:
        UserError: A setting is wrong, the bucket does not exist or refuses access, or a local path that must exist does
            not.
        SourceMissingError: A local path does not exist, and the settings say to wait.
        RetryableError: The storage does not answer.
    """
    settings = file_source_of(spec)
    check_format(spec)
    path = resolve(settings.path, environ, name="ingest.path")
    section = ingest_of(spec)
    once = section.operation != "upsert"
    root, _ = split_path(interval_paths(path, interval, once=once, timezone=section.timezone)[0])
    if "://" in root:
        try:
            open_storage(root, storage_options, follow_links=True).get_range(_ABSENT, 0, 1)
        except NotFoundError:
            return
    elif not settings.is_by_interval and not os.path.exists(root.removeprefix("file:")):
        # A run by interval may be a retry whose folders were deleted after their ingestion.
        check_missing([FolderListing(path=path, files=0, exists=False)], settings)
