"""`lakehouse table sync | drift | history`: spec files and the versions of them that the catalog has in force.

Jobs that Airflow starts put the files beside its DAGs in force by themselves (LAKEHOUSE_SYNC_SPECS). By hand nothing is
put in force but by `table sync`, and a file that differs is warned of: a person's working copy may be an old one.
"""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakehouse.cli.output import show
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import Catalog, document_of, load_catalog
from lakehouse.platform.catalog.connect import DEFAULT
from lakehouse.platform.catalog.spec_sync import (
    SpecState,
    SpecStatus,
    compare,
    recorded_files,
    synchronise,
    warnings_of,
)
from lakehouse.spec.changes import spec_changes
from lakehouse.spec.contracts.decisions import SpecInForce
from lakehouse.spec.contracts.job import JobReport
from lakehouse.spec.folder import SpecFolder, read_specs, spec_paths

logger = logging.getLogger(__name__)
#: Directories whose specs a job puts in force before it opens a table by its name; set by Airflow's operators.
SYNC = "LAKEHOUSE_SYNC_SPECS"
#: Directories with specs, as Airflow's DAGs are made of them.
SPECS = "LAKEHOUSE_SPECS"
#: Who puts a version in force; default the user of the operating system.
AUTHOR = "LAKEHOUSE_AUTHOR"


def specs_command(verb: str, words: Sequence[str]) -> int:
    """Run one command of this room."""
    return {"sync": _sync, "drift": _drift, "history": _history}[verb](words)


def author(environ: Mapping[str, str]) -> str:
    """Return who changes the catalog: as Airflow says, else the user of the operating system and the host."""
    if environ.get(AUTHOR):
        return environ[AUTHOR]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number without a name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def specs_in_force(catalog: Catalog, tables: Sequence[str] = ()) -> Mapping[str, str]:
    """Put the specs of a job's tables in force if Airflow started it; return warnings of those that are not, by table.

    Without `tables`, of all tables of the catalog.
    """
    if os.environ.get(SYNC):
        folder = _folder(_present(os.environ[SYNC]), tables)
        return warnings_of(synchronise(catalog, folder, author=author(os.environ), tables=tables))
    return drift_warnings(catalog, tables)


def drift_warnings(catalog: Catalog, tables: Sequence[str] = ()) -> Mapping[str, str]:
    """Return warnings of spec files that differ from what is in force, by table; nothing is changed."""
    named = _present(os.environ.get(SYNC) or os.environ.get(SPECS) or "")
    folder = _folder(named, tables) if named else recorded_files(catalog, tables)
    return warnings_of(compare(catalog, folder, tables))


def with_warning(report: JobReport, warning: str | None) -> JobReport:
    """Return the report with one more warning, the same one without."""
    return replace(report, warning="; ".join(filter(None, (report.warning, warning)))) if warning else report


def spec_in_force(catalog: Catalog, table: str) -> SpecInForce:
    """Return the version of a table's spec in the catalog, and its difference from the spec file."""
    entry = catalog.entry(table)
    return SpecInForce(
        spec_version=entry.spec_version,
        author=entry.author,
        file=entry.source,
        since=_time(entry.changed_ms),
        drift=drift_warnings(catalog, [entry.identifier]).get(entry.identifier),
    )


def _sync(words: Sequence[str]) -> int:
    parser = _parser("table sync")
    parser.add_argument("--dry-run", action="store_true", help="show what would be put in force, and change nothing")
    parser.add_argument("--author", default="", help="who changes it; default the user of the operating system")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        folder = _folder(_directories(given.specs), given.table)
        if given.dry_run:
            statuses = compare(catalog, folder, given.table)
        else:
            who = given.author or author(os.environ)
            statuses = synchronise(catalog, folder, author=who, tables=given.table, enter=True)
    show([_row(status) for status in statuses], given.output)
    refused = [status for status in statuses if status.state is SpecState.REFUSED]
    if refused:
        told = "; ".join(f"{status.table or status.file}: {status.problem}" for status in refused)
        raise UserError(f"{len(refused)} spec files are not in force: {told}")
    return 0


def _drift(words: Sequence[str]) -> int:
    given = _parser("table drift").parse_args(words)
    with load_catalog(given.catalog) as catalog:
        named = given.specs or _paths(os.environ.get(SPECS, ""))
        folder = _folder(named, given.table) if named else recorded_files(catalog, given.table)
        statuses = compare(catalog, folder, given.table)
    show([_row(status) for status in statuses], given.output)
    return 0


def _history(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lakehouse table history")
    _common(parser)
    parser.add_argument("table", help="namespace.table")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        versions = catalog.spec_history(given.table)
    rows: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    for version in versions:
        after = document_of(version.spec)
        changes = [str(change) for change in spec_changes(before, after)] if before else []
        rows.append(
            {
                "version": version.version,
                "at": _time(version.created_ms),
                "author": version.author,
                "file": version.source,
                "changes": changes,
            }
        )
        before = after
    show(rows, given.output)
    return 0


def _row(status: SpecStatus) -> dict[str, Any]:
    return {
        "table": status.table,
        "state": str(status.state),
        "version": status.version,
        "file": status.file,
        "changes": [str(change) for change in status.changes],
        "problem": status.problem,
    }


def _folder(directories: Sequence[Path], tables: Sequence[str]) -> SpecFolder:
    missing = [directory for directory in directories if not directory.is_dir()]
    if missing:
        raise UserError(f"{missing[0]} is no directory of table specs", path=str(missing[0]))
    # In the namespace `default` a file may leave it out.
    names = {name for table in tables for name in (table, table.removeprefix("default."))}
    return read_specs(spec_paths([directory.absolute() for directory in directories]), names)


def _directories(given: Sequence[Path]) -> Sequence[Path]:
    found = given or _paths(os.environ.get(SPECS, ""))
    if not found:
        raise UserError(f"no spec files: give their directory by --specs, or set {SPECS}")
    return found


def _present(text: str) -> list[Path]:
    """Return the directories that exist: a job goes on without those that this machine has not."""
    found = {path: path.is_dir() for path in _paths(text)}
    for path, present in found.items():
        if not present:
            logger.warning("%s is no directory of table specs: no spec of it is put in force or compared", path)
    return [path for path, present in found.items() if present]


def _paths(text: str) -> list[Path]:
    return [Path(part) for part in text.split(os.pathsep) if part]


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lakehouse {command}")
    _common(parser)
    parser.add_argument("--specs", action="append", type=Path, default=[], help="directory of specs; may be repeated")
    parser.add_argument("--table", action="append", default=[], help="namespace.table; default: all")
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", default=DEFAULT, help="name or URL of the catalog")
    parser.add_argument("--output", choices=("text", "json"), default="text")
