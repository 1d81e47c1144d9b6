"""Reads and changes the documents of jobs, and converts the errors of reports to Airflow exceptions.

Reports in a folder are read directly. Airflow's environment has no clients of object stores, HDFS and the catalog's
database. Their documents are read by a short process in Spark's environment, which has the clients and the credentials
of the jobs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lakehouse.errors import CommitStateUnknownError, CorruptTableError, RetryableError, UnsupportedError, UserError
from lakehouse.spec.contracts.job import JobReport, parse_report
from lakehouse.spec.report_store import Documents, FolderStore, JobDocument, JobDocuments
from lakehouse.spec.reports_folder import is_folder
from lakehouse_airflow.compat import AirflowException, AirflowFailException

#: Error classes after which a retry cannot help.
FINAL_EXIT_CODES = frozenset(
    error.exit_code for error in (UserError, UnsupportedError, CorruptTableError, CommitStateUnknownError)
)
_COMMAND = "lakehouse.platform.jobs.store_command"
_TIMEOUT_S = 120


class CommandStore:
    """The documents of a job, through processes in Spark's environment.

    Args:
        address: Address of the report.
        python: Python of Spark's environment.
        variables: Environment variables with the credentials of the store.
    """

    def __init__(self, address: str, python: str, variables: Mapping[str, str]) -> None:
        self.address, self._python, self._variables = address, python, variables

    def read(self, *documents: JobDocument) -> Documents:
        """Return documents."""
        return self._run({"read": [document.value for document in documents]})

    def change(self, changes: Mapping[JobDocument, str | None]) -> None:
        """Write and delete documents."""
        self._run({"change": {document.value: text for document, text in changes.items()}})

    def _run(self, request: Mapping[str, object]) -> Documents:
        try:
            done = subprocess.run(
                [self._python, "-m", _COMMAND],
                input=json.dumps({"address": self.address, **request}),
                env={**os.environ, **self._variables},
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise RetryableError(f"{self.address} did not answer within {_TIMEOUT_S} s") from error
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            kind = UserError if done.returncode in FINAL_EXIT_CODES else RetryableError
            raise kind(f"the reports at {self.address} cannot be used: {reason}")
        return {JobDocument(name): text for name, text in json.loads(done.stdout or "{}").items()}


def job_store(address: str, python: str, variables: Mapping[str, str]) -> FolderStore | CommandStore:
    """Return the store of a job. `python` and `variables` belong to Spark's environment."""
    return FolderStore(Path(address)) if is_folder(address) else CommandStore(address, python, variables)


def failed_task(report: JobReport, *, final: bool) -> AirflowException:
    """Build the exception for a report with an error. `final` means that a retry cannot help."""
    assert report.error is not None, "only a report with an error is a failure"
    message = f"{report.error.kind}: {report.error.message}"
    return AirflowFailException(message) if final else AirflowException(message)


def read_report(store: JobDocuments) -> JobReport | None:
    """Read the report of a job. Return None if the job has not written it."""
    try:
        return decoded_report(store.read(JobDocument.REPORT), store.address)
    except (UserError, RetryableError) as error:
        raise AirflowException(str(error)) from error


def decoded_report(documents: Documents, address: str) -> JobReport | None:
    """Decode the report among documents; return None if there is none."""
    text = documents.get(JobDocument.REPORT)
    try:
        return None if text is None else parse_report(text)
    except UserError as error:
        raise AirflowException(f"{address}: {error}") from error
