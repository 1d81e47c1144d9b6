"""`lakehouse doctor table`: find settings that make several writers of one table unsafe."""

from __future__ import annotations

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import catalog_name, open_table
from lakehouse.errors import UserError
from lakehouse.model.display import count_text
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.doctor.table_examine import examine_table
from lakehouse.platform.doctor.table_writers import read_writer_properties
from lakehouse.spec.contracts.table_doctor import TableDoctorReport
from lakehouse.spec.table.services import SERVICES


def run_table_doctor(given: Given) -> int:
    """Check the writers of a table, print the findings, and raise UserError if rows can be lost."""
    if not given.name:
        raise UserError("give the table to check: a catalog name, a spec file or a location, such as sales.orders")
    writers = {path: read_writer_properties(path) for path in given.writer_properties}
    table = open_table(given.name, given.option)
    identifier = catalog_name(given.name)
    services = None if identifier is None else _services_of(*identifier)
    report = examine_table(table, writers, services=services, name="" if identifier is None else identifier[1])
    show_document(report, given.output, rows=[]) if given.output == "json" else _print(report, bool(writers))
    if report.unsafe:
        checks = ", ".join(dict.fromkeys(finding.check for finding in report.unsafe))
        raise UserError(
            f"{report.table}: {count_text(len(report.unsafe), 'finding')} by which rows or versions can be lost: "
            f"{checks}. Correct the settings before several writers run"
        )
    return 0


def _services_of(catalog: str, identifier: str) -> tuple[str, ...]:
    """Return the services that are enabled for a registered table."""
    with load_catalog(catalog) as opened:
        return tuple(service for service in SERVICES if opened.settings(identifier, service).enabled)


def _print(report: TableDoctorReport, has_writers: bool) -> None:
    print(f"{report.table} at {report.location}, version {report.table_version}")
    print(f"writers: {', '.join(report.writers)}")
    if not has_writers:
        print("no --writer-properties: the settings of Hudi's jobs are not compared")
    for finding in report.findings:
        names = f" ({', '.join(finding.writers)})" if finding.writers else ""
        print(f"\n{finding.risk.value}: {finding.check}{names}")
        print(f"  problem      {finding.problem}")
        print(f"  consequence  {finding.consequence}")
        print(f"  what to do   {finding.advice}")
    if not report.findings:
        print(f"no finding of {count_text(len(report.checks), 'check')}")
