"""`lakehouse ingest run`: the job that Airflow submits, and that people run by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lakehouse.errors import UserError
from lakehouse.ingest.run import run_ingest
from lakehouse.jobs import describe, run_job
from lakehouse.spark.session import job_session
from lakehouse.spec.job import JobCommand, JobReport
from lakehouse.spec.table import load_spec


def ingest(words: Sequence[str]) -> int:
    """Run one ingestion and print its report."""
    command = JobCommand.from_argv(words)
    if command.action != "run":
        raise UserError(f"ingest {command.action!r} is unknown; `lakehouse ingest run --table spec.yaml` ingests")
    return run_job(command, _work)


def _work(command: JobCommand) -> JobReport:
    spec = load_spec(Path(command.table))
    session = job_session(f"lakehouse ingest {spec.table}")
    report = run_ingest(session, spec, command, environ=os.environ)
    print(describe(report), file=sys.stdout)
    return report
