"""`lakehouse table upgrade | downgrade`. A change of a registered table is a run that the catalog records."""

from __future__ import annotations

import os

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.progress import terminal_progress
from lakehouse.cli.table import catalog_name, open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.version.version_plan import VersionPlan, VersionRequest
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.version_run import changed, run_version_change
from lakehouse.platform.jobs.report import JOB
from lakehouse.spec.contracts.tables import VersionChange


def upgrade(given: Given) -> None:
    """Change a table to a newer table version, or show the plan."""
    _change(given, is_upgrade=True)


def downgrade(given: Given) -> None:
    """Change a table to an older table version, or show the plan."""
    _change(given, is_upgrade=False)


def _change(given: Given, *, is_upgrade: bool) -> None:
    request = VersionRequest(
        to=given.to,
        upgrade=is_upgrade,
        dry_run=given.dry_run,
        grace_s=given.grace_s,
        source=getattr(given, "from"),
    )
    identifier = catalog_name(given.table)
    if identifier is None:
        table = open_table(given.table)
        with terminal_progress():
            outcome = changed(table, request)
        show_document(_document(table.name, table.config.version, outcome, ""), given.output)
        return
    with load_catalog(identifier[0]) as catalog:
        with terminal_progress():
            # The job of Airflow is the same in all tries of its task, so that a retry continues the run.
            done = run_version_change(catalog, identifier[1], request, run_id=os.environ.get(JOB))
        version = catalog.load_table(identifier[1]).config.version
    show_document(_document(identifier[1], version, done.outcome, done.run_id), given.output)


def _document(table: str, version: int, outcome: VersionPlan | NothingToDo, run: str) -> VersionChange:
    if isinstance(outcome, NothingToDo):
        return VersionChange(
            table=table, source=version, target=version, is_done=False, run=run, warnings=(outcome.reason,)
        )
    return VersionChange(
        table=table,
        source=outcome.source,
        target=outcome.target,
        is_done=outcome.is_done,
        run=run,
        steps=outcome.steps,
        readers_lost=outcome.readers_lost,
        blockers=outcome.blockers,
        warnings=outcome.warnings,
    )
