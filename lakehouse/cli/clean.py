"""`lakehouse clean orphans`: list or delete data files that belong to no write."""

from __future__ import annotations

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.plan_views import orphan_view
from lakehouse.cli.table import open_table
from lakehouse.spec.contracts.services import OrphanFiles


def orphans(given: Given) -> None:
    """Print the orphan files of a table, and delete them with `--delete`."""
    remove = given.delete and not given.dry_run
    report = open_table(given.table, given.option).services.orphans(remove=remove)
    files = tuple(map(orphan_view, report))
    size = sum(file.bytes for file in files)
    show_document(OrphanFiles(deleted=remove, files=len(files), bytes=size, orphans=files), given.output)
