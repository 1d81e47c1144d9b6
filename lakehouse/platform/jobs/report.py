"""Files and output of job reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobCommand, JobReport
from lakehouse.spec.contracts.job_text import report_text
from lakehouse.spec.private_files import make_parents

#: Environment variable with the id of the job; Airflow's operators set it.
JOB = "LAKEHOUSE_JOB"


def write_report(path: Path, report: JobReport) -> None:
    """Write the report atomically, so that a reader never sees a part of it."""
    make_parents(path.parent)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # A new file of mode 0600 with a name that no other process can predict.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(report.to_json())
    os.replace(temporary, path)


def is_reported_by_caller(command: JobCommand, environ: Mapping[str, str]) -> bool:
    """Return whether an Airflow operator reads the report file and logs it, so that the job prints no report."""
    return command.report is not None and bool(environ.get(JOB))


def print_report(command: JobCommand, report: JobReport) -> None:
    """Print the report as text, or as JSON with `--output json`, unless an operator logs it."""
    if not is_reported_by_caller(command, os.environ):
        print_document(command, report, report_text(report))


def print_document(command: JobCommand, document: Document, text: str) -> None:
    """Print a document as JSON with `--output json`, else its text."""
    shown = json.dumps(document.to_mapping(), indent=2, ensure_ascii=False) if command.output == "json" else text
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()
