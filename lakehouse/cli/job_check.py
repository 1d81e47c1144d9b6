"""Checks of jobs without a Spark session: `lakehouse <noun> run --check`, and the first step of every job.

A check opens the table by its metadata. It lists and reads no data files.
"""

from __future__ import annotations

import os

from lakehouse.cli.specs import specs_in_force
from lakehouse.cli.table import catalog_name, open_table
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.services.check import check_service
from lakehouse.spec.command_check import check_command
from lakehouse.spec.job_command import ServiceCommand


def check_service_job(command: ServiceCommand) -> tuple[str, ...]:
    """Check a table service; raise UserError if it cannot run on the table.

    Of several tables only the names and the options are checked: one wrong table does not stop the others, and its
    report names the error.
    """
    check_command(command, os.environ)
    if len(command.tables) == 1:
        check_service(_opened(command), command)
        return ()
    names = {table: catalog_name(table) for table in command.tables}
    unknown = next((table for table, name in names.items() if name is None), None)
    if unknown is not None:
        raise UserError(f"several tables in one run must be names of a catalog, but {unknown!r} is not", table=unknown)
    catalogs = sorted({name[0] for name in names.values() if name is not None})
    if len(catalogs) > 1:
        raise UserError(f"the tables of one run must be in one catalog, not in {', '.join(catalogs)}")
    return ()


def _opened(command: ServiceCommand) -> Table:
    known = catalog_name(command.table)
    if known is None:
        return open_table(command.table, command.options)
    with load_catalog(known[0]) as catalog:
        # The run puts the spec file in force, too. A check of the previous spec would report corrected errors.
        specs_in_force(catalog, [known[1]])
        return catalog.load_table(known[1], options=command.options)
