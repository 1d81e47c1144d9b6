"""Reads job reports on this host, and converts their errors to Airflow exceptions."""

from __future__ import annotations

from pathlib import Path

from lakehouse.errors import CommitStateUnknownError, CorruptTableError, UnsupportedError, UserError
from lakehouse.spec.contracts.job import JobReport, parse_report
from lakehouse.spec.private_files import read_own_file
from lakehouse_airflow.compat import AirflowException, AirflowFailException

#: Error classes after which a retry cannot help.
FINAL_EXIT_CODES = frozenset(
    error.exit_code for error in (UserError, UnsupportedError, CorruptTableError, CommitStateUnknownError)
)


def failed_task(report: JobReport, *, final: bool) -> AirflowException:
    """Build the exception for a report with an error. `final` means that a retry cannot help."""
    assert report.error is not None, "only a report with an error is a failure"
    message = f"{report.error.kind}: {report.error.message}"
    return AirflowFailException(message) if final else AirflowException(message)


def read_report(path: Path) -> JobReport | None:
    """Read the report of a job. Return None if the job has not written it."""
    try:
        return parse_report(read_own_file(path))
    except FileNotFoundError:
        return None
    except UserError as error:
        raise AirflowException(f"{path}: {error}") from error
