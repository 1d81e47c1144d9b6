"""Check the archived timeline: its manifest, the files in the manifest, and their contents."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.archived_log import ArchivedLog
from lakehouse.errors import CorruptTableError
from lakehouse.model.validation import Finding

_BATCH = 64


def check_archive(table: LoadedTable) -> Iterator[Finding]:
    """Yield findings about the manifest and its files; reads the instants, not the metadata of the actions."""
    history = table.store.archived_timeline
    directory = history.directory
    try:
        files = history.files()
    except CorruptTableError as error:
        yield Finding(invariant="archive.readable", problem=error.message, path=directory)
        return
    if not files or isinstance(history, ArchivedLog):
        # Log files of version 6 have no manifest. Listing them read their instants.
        return
    listed, _ = table.env.storage.list_dir(directory)
    sizes = {file.name: file.size_bytes for file in listed}
    whole = True
    for file in files:
        size = sizes.get(file.name)
        if size != file.size_bytes:
            whole = False
            has = "is missing" if size is None else f"has {size} bytes"
            problem = f"the manifest says that the file has {file.size_bytes} bytes, but it {has}"
            yield Finding(invariant="archive.readable", problem=problem, path=f"{directory}/{file.name}")
    if not whole:
        return
    try:
        history.instants()
    except (CorruptTableError, pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        yield Finding(invariant="archive.readable", problem=f"a file cannot be read: {error}", path=directory)


def read_archive(table: LoadedTable) -> Iterator[Finding]:
    """Yield a finding if the metadata of an archived write cannot be read; reads all writes, a batch at a time."""
    try:
        writes = archived_writes(table).instants
        for start in range(0, len(writes), _BATCH):
            table.store.archived_commits(writes[start : start + _BATCH])
    except (CorruptTableError, pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        yield Finding(invariant="archive.readable", problem=f"an archived write cannot be read: {error}")
