"""Compare a target table's key with the unique keys of its source table, and target names with each other.

Source rows with the same record key are merged into one target row. So the record key must contain the columns of a
non-null unique source index, or `ingest.keys` must declare its columns unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakehouse.errors import UserError
from lakehouse.platform.sources.databases.server import SourceTable
from lakehouse.spec.sources.database_source import DatabaseSettings
from lakehouse.spec.table.table_spec import TableSpec

_SEPARATORS = "/\\"
_LONGEST_BYTES = 200


def require_unique(table: SourceTable, key: tuple[str, ...], settings: DatabaseSettings) -> None:
    """Raise UserError if the record key contains no unique key, so that source rows would be merged.

    Args:
        table: The source table as it is now.
        key: The record key of the target; empty if rows are appended.
        settings: The settings of the source.
    """
    declared = settings.keys.get(table.name, ())
    if not key or not table.unique or (declared and set(declared) <= set(key)):
        return
    if any(set(columns) <= set(key) for columns in table.unique):
        return
    keys = " and ".join(f"({', '.join(columns)})" for columns in table.unique)
    names = ", ".join(key)
    raise UserError(
        f"the record key ({names}) is narrower than the unique keys of {table.name}, which are {keys}, so rows that "
        f"have the same ({names}) would be merged into one. Declare the whole key as record_key of a new table at "
        f"another location; or, if ({names}) is unique, write 'keys: {{{table.name}: \"{names}\"}}' in ingest",
        table=table.name,
    )


def unlogged_key(table: SourceTable) -> tuple[str, ...]:
    """Return the columns of a unique index that are missing in the log; empty if there are none."""
    names = {column.name for column in table.columns}
    return next((columns for columns in table.unique if not set(columns) <= names), ())


@contextmanager
def changed_keys(table: SourceTable | None, spec: TableSpec, settings: DatabaseSettings) -> Iterator[None]:
    """Raise UserError with a remedy if opening a target fails because the source table's primary key changed."""
    try:
        yield
    except UserError as error:
        if table is None or not settings.into or error.facts.get("name") != "record_key":
            raise
        raise UserError(
            f"the primary key of {table.name} is ({', '.join(table.key)}) now. {error.message} That is: copy "
            f"{table.name} into a new table by another name in ingest.into; or, if the columns of the stored key are "
            f"unique, declare them in ingest.keys ({{{table.name}: column}})",
            table=table.name,
        ) from error


def target_problems(settings: DatabaseSettings, names: Iterable[str]) -> Mapping[str, UserError]:
    """Return errors by source table name, for targets with unsafe names or the name of another target."""
    sources: dict[str, list[str]] = {}
    for name in names if settings.into else ():
        sources.setdefault(settings.target_of(name), []).append(name)
    problems = {}
    for target, its in sources.items():
        for name in its:
            if not _is_safe(target):
                problems[name] = UserError(
                    f"the source table {name!r} would be written to {target!r}, which is no name of a folder: it must "
                    f"have no '/' or '\\', no control characters, at most {_LONGEST_BYTES} bytes, and not begin with "
                    "'.'. Rename the source table, or leave it out by ingest.exclude",
                    table=name,
                )
            elif len(its) > 1:
                problems[name] = UserError(
                    f"the source tables {', '.join(its)} would be written to the same table {target!r}: write "
                    "{database} or {schema} in ingest.into, too",
                    table=name,
                )
    return problems


def _is_safe(name: str) -> bool:
    is_plain = name.isprintable() and not any(character in name for character in _SEPARATORS)
    return is_plain and not name.startswith(".") and 0 < len(name.encode()) <= _LONGEST_BYTES
