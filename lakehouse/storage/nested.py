"""Tables inside a table's folder: a directory with a `.hoodie` of its own, and its files, are another table's."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.storage.protocol import FileInfo

HOODIE = ".hoodie"
_INSIDE = f"/{HOODIE}/"


def nested_tables(files: Iterable[FileInfo]) -> tuple[str, ...]:
    """Return the directories of other tables that a recursive listing of a table shows, sorted; outermost ones alone.

    Files below the table's own `.hoodie` are not looked at: its metadata table is its own.
    """
    lead = f"{HOODIE}/"
    found = sorted({f.path.partition(_INSIDE)[0] for f in files if _INSIDE in f.path and not f.path.startswith(lead)})
    outermost: list[str] = []
    for directory in found:
        if not any(directory.startswith(f"{above}/") for above in outermost):
            outermost.append(directory)
    return tuple(outermost)


def without(files: Iterable[FileInfo], directories: Iterable[str]) -> list[FileInfo]:
    """Return the files that lie in none of some directories."""
    leads = tuple(f"{directory}/" for directory in directories)
    return [file for file in files if not file.path.startswith(leads)] if leads else list(files)
