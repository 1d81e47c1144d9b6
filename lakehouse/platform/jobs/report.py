"""Files and output of job reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lakehouse.errors import RetryableError
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobReport, without_lineage
from lakehouse.spec.contracts.job_text import report_text
from lakehouse.spec.job_command import JobArguments
from lakehouse.spec.private_files import make_parents

#: Environment variable with the id of the job; Airflow's operators set it.
JOB = "LAKEHOUSE_JOB"
#: Bytes reserved for a report; a report without lineage takes some thousands.
_RESERVED = 262_144


class ReportFile:
    """The file of a report, whose space is reserved before the job: a full disk is found before the commit.

    Raises RetryableError if the space cannot be reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._temporary = path, ""
        try:
            make_parents(path.parent)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._remove_leftovers()
            # A new file of mode 0600 with a name that no other process can predict.
            descriptor, self._temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
            try:
                os.posix_fallocate(descriptor, 0, _RESERVED)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.discard()
            raise RetryableError(
                f"no space can be reserved for the report {path}: {error}. The job has not begun. Free space there, or "
                "set LAKEHOUSE_REPORTS to another folder"
            ) from error

    def write(self, report: JobReport) -> None:
        """Write the report atomically, so that readers never get a partial report; raise OSError on failure.

        If the disk is full and the report exceeds the reserved space, it is written without its lineage.
        """
        try:
            self._fill(report)
        except OSError:
            self._fill(without_lineage(report))
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        """Delete the reserved file unless it contains the report."""
        with suppress(OSError):
            if self._temporary:
                os.unlink(self._temporary)

    def _fill(self, report: JobReport) -> None:
        with open(self._temporary, "r+b") as file:
            file.write(report.to_json().encode())
            file.truncate()

    def _remove_leftovers(self) -> None:
        """Delete the reserved files of earlier tries, which were killed."""
        for file in self._path.parent.glob(f".{self._path.name}.*.tmp"):
            file.unlink(missing_ok=True)


def is_reported_by_caller(command: JobArguments, environ: Mapping[str, str]) -> bool:
    """Return whether an Airflow operator reads the report file and logs it, so that the job prints no report."""
    return command.report is not None and bool(environ.get(JOB))


def print_report(command: JobArguments, report: JobReport) -> None:
    """Print the report in words, or as JSON with `--output json`, unless an operator logs it."""
    if not is_reported_by_caller(command, os.environ):
        print_document(command, report, report_text(report))


def print_document(command: JobArguments, document: Document, text: str) -> None:
    """Print a document as JSON with `--output json`, else `text`."""
    shown = json.dumps(document.to_mapping(), indent=2, ensure_ascii=False) if command.output == "json" else text
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()
