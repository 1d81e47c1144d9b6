"""The archived timeline, read for validation: its manifest, and the files that it names, are whole."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakehouse.core.operations.load.table import LoadedTable, archived_writes
from lakehouse.errors import CorruptTableError
from lakehouse.model.validation import Finding

_HISTORY = "hoodie.timeline.history.path"


_AT_ONCE = 64


def check_archive(table: LoadedTable) -> Iterator[Finding]:
    """Yield what is wrong with the archive; the times in it are read, not what its actions hold."""
    history = table.store.history
    if history is None:
        return
    directory = f".hoodie/{table.config.timeline_path}/{table.config.raw.get(_HISTORY, 'history')}"
    try:
        files = history.files()
    except CorruptTableError as error:
        yield Finding(invariant="archive.readable", problem=error.message, path=directory)
        return
    if not files:
        return
    listed, _ = table.env.storage.list_dir(directory)
    sizes = {file.name: file.size_bytes for file in listed}
    whole = True
    for file in files:
        found = sizes.get(file.name)
        if found != file.size_bytes:
            whole = False
            has = "is not there" if found is None else f"has {found} bytes"
            problem = f"the manifest says that the file has {file.size_bytes} bytes, it {has}"
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
    """Yield the archived writes that do not say what they did: all of them are read, a few at a time."""
    try:
        writes = archived_writes(table).instants
        for start in range(0, len(writes), _AT_ONCE):
            table.store.archived_commits(writes[start : start + _AT_ONCE])
    except (CorruptTableError, pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        yield Finding(invariant="archive.readable", problem=f"an archived write cannot be read: {error}")
