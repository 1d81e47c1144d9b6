"""Reports of jobs that ran on this host, and the exceptions for those with an error."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lakehouse.errors import CommitStateUnknownError, CorruptTableError, UnsupportedError, UserError
from lakehouse.spec.contracts.job import JobReport, parse_report
from lakehouse.spec.private_files import read_own_file

#: A retry cannot help after these.
FINAL_EXIT_CODES = frozenset(
    error.exit_code for error in (UserError, UnsupportedError, CorruptTableError, CommitStateUnknownError)
)


def failed_task(report: JobReport, *, final: bool) -> AirflowException:
    """Return the exception for a report with an error; `final`: a retry cannot help."""
    assert report.error is not None, "only a report with an error is a failure"
    message = f"{report.error.kind}: {report.error.message}"
    return AirflowFailException(message) if final else AirflowException(message)


def read_report(path: Path) -> JobReport | None:
    """Return the report of a job, None if it has not written one."""
    try:
        return parse_report(read_own_file(path))
    except FileNotFoundError:
        return None
    except UserError as error:
        raise AirflowException(f"{path}: {error}") from error
