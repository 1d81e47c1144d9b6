"""`lakehouse table sync | drift | history`: spec files and their versions in the catalog.

Airflow jobs apply the spec files next to its DAGs automatically (LAKEHOUSE_SYNC_SPECS). In a shell only `table sync`
applies spec files. Other commands only warn about a difference, because a user's working copy can be old.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import rows_of, show_document
from lakehouse.errors import UserError
from lakehouse.model.display import time_text
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.new_entries import document_of
from lakehouse.platform.catalog.spec_sync import (
    SpecStatus,
    compare,
    compared_with_tables,
    recorded_files,
    synchronise,
    warnings_of,
)
from lakehouse.spec.contracts.catalog import SpecFiles, SpecFileStatus, SpecHistory, SpecState, SpecVersion
from lakehouse.spec.contracts.decisions import SpecInForce
from lakehouse.spec.contracts.job import ReportT
from lakehouse.spec.table.changes import spec_changes
from lakehouse.spec.table.folder import SpecFolder, read_specs, spec_paths

logger = logging.getLogger(__name__)
#: Directories of spec files that a job applies before it opens a table by name. Airflow operators set this variable.
SYNC = "LAKEHOUSE_SYNC_SPECS"
#: Directories of the spec files from which Airflow's DAGs are built.
SPECS = "LAKEHOUSE_SPECS"
#: Author of new spec versions. Default: the user of the operating system.
AUTHOR = "LAKEHOUSE_AUTHOR"


def author(environ: Mapping[str, str]) -> str:
    """Return the author of changes: the one that Airflow set, otherwise user and host of this process."""
    if environ.get(AUTHOR):
        return environ[AUTHOR]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user id may have no user name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def specs_in_force(catalog: Catalog, tables: Sequence[str] = ()) -> Mapping[str, str]:
    """Apply the spec files of a job's tables if Airflow started the job. Return warnings by table.

    A warning reports a spec file that was not applied. Empty `tables` means all tables of the catalog.
    """
    if os.environ.get(SYNC):
        folder = _folder(_present(os.environ[SYNC]), tables)
        return warnings_of(synchronise(catalog, folder, author=author(os.environ), tables=tables))
    return drift_warnings(catalog, tables)


def drift_warnings(catalog: Catalog, tables: Sequence[str] = ()) -> Mapping[str, str]:
    """Return, by table, warnings about spec files that differ from the catalog. Nothing is changed."""
    named = _present(os.environ.get(SYNC) or os.environ.get(SPECS) or "")
    folder = _folder(named, tables) if named else recorded_files(catalog, tables)
    return warnings_of(compare(catalog, folder, tables))


def with_warning(report: ReportT, warning: str | None) -> ReportT:
    """Return the report with an additional warning, or unchanged if `warning` is None."""
    return replace(report, warning="; ".join(filter(None, (report.warning, warning)))) if warning else report


def spec_in_force(catalog: Catalog, table: str) -> SpecInForce:
    """Return the version of a table's spec in the catalog, and its differences from the spec file."""
    entry = catalog.entry(table)
    return SpecInForce(
        spec_version=entry.spec_version,
        author=entry.author,
        file=entry.source,
        since=time_text(entry.changed_ms),
        drift=drift_warnings(catalog, [entry.identifier]).get(entry.identifier),
    )


def sync(given: Given) -> None:
    """Apply spec files; with `--dry-run` only compare them with the catalog."""
    with load_catalog(given.catalog) as catalog:
        folder = _folder(_directories(_given_paths(given)), given.table)
        if given.dry_run:
            statuses = compare(catalog, folder, given.table)
        else:
            changed_by = given.author or author(os.environ)
            statuses = synchronise(catalog, folder, author=changed_by, tables=given.table, enter=True)
        statuses = compared_with_tables(catalog, folder, statuses)
    _show(statuses, given.output)
    refused = [status for status in statuses if status.state is SpecState.REFUSED]
    if refused:
        problems = "; ".join(f"{status.table or status.file}: {status.problem}" for status in refused)
        raise UserError(f"{len(refused)} spec files were not applied: {problems}")


def drift(given: Given) -> None:
    """Compare spec files with their versions in the catalog, and with the properties of their tables."""
    with load_catalog(given.catalog) as catalog:
        named = _given_paths(given) or _paths(os.environ.get(SPECS, ""))
        folder = _folder(named, given.table) if named else recorded_files(catalog, given.table)
        statuses = compared_with_tables(catalog, folder, compare(catalog, folder, given.table))
    _show(statuses, given.output)


def history(given: Given) -> None:
    """Print all versions of a table's spec."""
    with load_catalog(given.catalog) as catalog:
        versions = catalog.spec_history(given.table)
    history: list[SpecVersion] = []
    before: dict[str, Any] = {}
    for version in versions:
        after = document_of(version.spec)
        changes = [str(change) for change in spec_changes(before, after)] if before else []
        history.append(
            SpecVersion(
                spec_version=version.version,
                at=time_text(version.created_ms),
                author=version.author,
                file=version.source,
                changes=tuple(changes),
            )
        )
        before = after
    show_document(SpecHistory(table=given.table, versions=tuple(history)), given.output, rows=rows_of(history))


def _show(statuses: Sequence[SpecStatus], output: str) -> None:
    specs = [
        SpecFileStatus(
            table=status.table,
            state=status.state,
            spec_version=status.version,
            file=status.file,
            changes=tuple(str(change) for change in status.changes),
            problem=status.problem,
        )
        for status in statuses
    ]
    rows = [{**row, "state": row["state"].replace("_", " ")} for row in rows_of(specs)]
    show_document(SpecFiles(specs=tuple(specs)), output, rows=rows)


def _folder(directories: Sequence[Path], tables: Sequence[str]) -> SpecFolder:
    missing = [directory for directory in directories if not directory.is_dir()]
    if missing:
        raise UserError(f"{missing[0]} is not a directory; give a directory of table specs", path=str(missing[0]))
    # A spec file may omit the namespace `default`.
    names = {name for table in tables for name in (table, table.removeprefix("default."))}
    return read_specs(spec_paths([directory.absolute() for directory in directories]), names)


def _directories(given: Sequence[Path]) -> Sequence[Path]:
    paths = given or _paths(os.environ.get(SPECS, ""))
    if not paths:
        raise UserError(f"no spec files: give their directory with --specs, or set {SPECS}")
    return paths


def _present(text: str) -> list[Path]:
    """Return the directories that exist on this host; log a warning for the others."""
    folders = {path: path.is_dir() for path in _paths(text)}
    for path, present in folders.items():
        if not present:
            logger.warning("%s is not a directory: none of its spec files is applied or compared", path)
    return [path for path, present in folders.items() if present]


def _paths(text: str) -> list[Path]:
    return [Path(part) for part in text.split(os.pathsep) if part]


def _given_paths(given: Given) -> list[Path]:
    return [Path(directory) for directory in given.specs]
