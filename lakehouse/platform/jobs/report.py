"""Output of job reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobReport
from lakehouse.spec.contracts.job_text import report_text
from lakehouse.spec.job_command import JobArguments

#: Environment variable with the id of the job; Airflow's operators set it.
JOB = "LAKEHOUSE_JOB"


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
