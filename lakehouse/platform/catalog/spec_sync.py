"""Compare spec files with the catalog, and store edited files as current specs.

    file next to the DAGs ──► synchronise ──► new version in the catalog: author, file, time
                    └───────► compare ──────► the settings in which file and catalog differ

Users edit the file, so it overrides the version in the catalog. A file that does not parse, has another location, or
contradicts keys or policies is refused: the current version stays, and the status contains the reason.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.declared_tables import open_declared_table
from lakehouse.platform.catalog.entries import InvalidEntry, TableEntry
from lakehouse.platform.catalog.new_entries import document_of
from lakehouse.platform.catalog.table_names import full_name
from lakehouse.spec.contracts.catalog import SpecState
from lakehouse.spec.table.changes import SpecChange, changes_text, spec_changes
from lakehouse.spec.table.folder import SpecFolder, read_specs
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStatus:
    """Status of one table: the current spec version, the file that declares it, and their differences.

    `changes` lead from the catalog to the file. After a synchronisation they lead from the previous version to the
    current version.
    """

    table: str
    state: SpecState
    version: int | None = None
    file: str = ""
    changes: tuple[SpecChange, ...] = ()
    problem: str = ""

    @property
    def warning(self) -> str:
        """Return a warning about the current spec; empty if file and catalog agree."""
        if self.state is SpecState.REFUSED:
            stays = "" if self.version is None else f"; version {self.version} stays in force"
            return f"spec file {self.file} is not in force: {self.problem}{stays}"
        if self.state is SpecState.DIFFERS:
            return (
                f"spec file {self.file} is not in force, version {self.version} is: {changes_text(self.changes)}. "
                "`lakehouse table sync` puts it in force"
            )
        return ""


def compare(catalog: Catalog, folder: SpecFolder, tables: Collection[str] = ()) -> tuple[SpecStatus, ...]:
    """Return the status of each spec file, sorted by table, without a change.

    Args:
        catalog: the catalog.
        folder: the specs in files.
        tables: full names of tables; empty for all tables in catalog and files.
    """
    registered = map(catalog.registered_entry, tables) if tables else catalog.registered().values()
    entries = {entry.identifier: entry for entry in registered}
    statuses: dict[str, SpecStatus] = {}
    for problem in folder.problems:
        name = _name(problem.table)
        entry = entries.get(name)
        version = None if entry is None else entry.spec_version
        statuses[name or problem.file] = SpecStatus(
            table=name, state=SpecState.REFUSED, version=version, file=problem.file, problem=problem.message
        )
    # The ingestion of a template registers its tables, because it determines their names.
    for spec in (spec for spec in folder.specs if not spec.is_template):
        status = _compared(spec, entries.get(_name(spec.table)))
        statuses.setdefault(status.table, status)
    for name, entry in entries.items():
        statuses.setdefault(name, SpecStatus(table=name, state=SpecState.NO_FILE, version=entry.spec_version))
    wanted = {_name(name) for name in tables}
    return tuple(statuses[key] for key in sorted(statuses) if not wanted or statuses[key].table in wanted)


def synchronise(
    catalog: Catalog, folder: SpecFolder, *, author: str, tables: Collection[str] = (), enter: bool = False
) -> tuple[SpecStatus, ...]:
    """Store spec files that differ as current versions, and return the resulting statuses; see `compare`.

    Two concurrent synchronisations make one new version.

    Args:
        catalog: the catalog.
        folder: the specs in files.
        author: recorded as the author of new versions.
        tables: full names of tables; empty for all.
        enter: also register unknown tables, and create missing tables.

    Raises:
        RetryableError: the catalog does not answer.
    """
    specs = {_name(spec.table): spec for spec in folder.specs}
    statuses = []
    for status in compare(catalog, folder, tables):
        if status.state is SpecState.DIFFERS or (enter and status.state is SpecState.UNKNOWN):
            status = _put_in_force(catalog, specs[status.table], status, author)
        statuses.append(status)
    return tuple(statuses)


def compared_with_tables(
    catalog: Catalog, folder: SpecFolder, statuses: Collection[SpecStatus]
) -> tuple[SpecStatus, ...]:
    """Return the statuses, refused where a spec file declares other settings than its table stores.

    Opens each table with a status from `compare`, which means that its file is current or differs.

    Raises:
        RetryableError: the catalog or a storage does not answer.
    """
    specs = {_name(spec.table): spec for spec in folder.specs}
    opened = [status for status in statuses if status.state in (SpecState.IN_FORCE, SpecState.DIFFERS)]
    entries = {entry.identifier: entry for entry in catalog.entries([status.table for status in opened])}
    problems = {status.table: _contradiction(specs[status.table], entries[status.table]) for status in opened}
    return tuple(
        replace(status, state=SpecState.REFUSED, problem=problems[status.table])
        if problems.get(status.table)
        else status
        for status in statuses
    )


def recorded_files(catalog: Catalog, tables: Collection[str] = ()) -> SpecFolder:
    """Read the source files of the current versions, if they are on this machine."""
    # A relative path refers to the working directory of another process.
    sources = {entry.source for entry in _entries(catalog, tables) if os.path.isabs(entry.source)}
    return read_specs(Path(source) for source in sorted(sources) if Path(source).is_file())


def warnings_of(statuses: Collection[SpecStatus]) -> Mapping[str, str]:
    """Return the warnings by table; log the warnings of files without a table."""
    for status in statuses:
        if status.warning and not status.table:
            logger.warning("%s", status.warning)
    return {status.table: status.warning for status in statuses if status.warning and status.table}


def _entries(catalog: Catalog, tables: Collection[str]) -> Collection[TableEntry | InvalidEntry]:
    """Return the entries of the given registered tables, or of all tables."""
    if not tables:
        return catalog.registered().values()
    return [catalog.registered_entry(n) for n in tables if _name(n) and catalog.table_exists(n)]


def _compared(spec: TableSpec, entry: TableEntry | InvalidEntry | None) -> SpecStatus:
    status = SpecStatus(table=_name(spec.table), state=SpecState.UNKNOWN, file=spec.source)
    if entry is None:
        return status
    status = replace(status, version=entry.spec_version)
    try:
        place = location_of(spec, os.environ)
    except UserError as error:
        return replace(status, state=SpecState.REFUSED, problem=error.message)
    if place != entry.location:
        problem = f"{entry.identifier} is at {entry.location}, but the file declares {place}"
        return replace(status, state=SpecState.REFUSED, problem=problem)
    # Different spellings of the same location do not count as a change.
    stored = entry.document if isinstance(entry, InvalidEntry) else document_of(entry.spec)
    changes = spec_changes(*({**document, "location": place} for document in (stored, document_of(spec))))
    return replace(status, state=SpecState.DIFFERS if changes else SpecState.IN_FORCE, changes=changes)


def _contradiction(spec: TableSpec, entry: TableEntry) -> str:
    """Return why the table of an entry contradicts a spec; empty if it agrees, or if there is no table yet."""
    recorded = {} if entry.identity is None else {spec.table: entry.identity}
    placed = replace(spec, location=entry.location, identities=recorded)
    try:
        open_declared_table(placed, placed.write_options(), Env(storage=open_storage(entry.location)))
    except RetryableError:
        raise
    except LakehouseError as error:
        return error.message
    return ""


def _put_in_force(catalog: Catalog, spec: TableSpec, status: SpecStatus, author: str) -> SpecStatus:
    try:
        if status.state is SpecState.UNKNOWN:
            version, state = catalog.ensure_table(spec, author=author).spec_version, SpecState.ENTERED
        else:
            version, state = catalog.update_spec(spec, author=author), SpecState.CHANGED
    except RetryableError:
        raise
    except LakehouseError as error:
        return replace(status, state=SpecState.REFUSED, problem=error.message)
    logger.info("%s: version %s of its spec is in force, from %s: %s", *_summary(status, version))
    return replace(status, state=state, version=version)


def _summary(status: SpecStatus, version: int) -> tuple[str, int, str, str]:
    return status.table, version, status.file, changes_text(status.changes) or "new"


def _name(table: str) -> str:
    """Return the full name of a table, or an empty string for an invalid name."""
    try:
        return full_name(table)
    except UserError:
        return ""
