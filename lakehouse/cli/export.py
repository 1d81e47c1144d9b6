"""`lakehouse export iceberg | delta`: a run of the service for one format, whether the table declares it or not."""

from __future__ import annotations

from lakehouse.cli.arguments import job_command
from lakehouse.cli.group import Given
from lakehouse.cli.table_service import run_service_job
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.options.export import DELTA, EXPORT_FORMATS, ICEBERG


def export_iceberg(given: Given) -> int:
    """Export to Iceberg."""
    return _export(given, ICEBERG)


def export_delta(given: Given) -> int:
    """Export to Delta."""
    return _export(given, DELTA)


def _export(given: Given, name: str) -> int:
    return run_service_job(job_command(given, ServiceCommand, [f"{EXPORT_FORMATS}={name}"]))
