"""Run one job: execute it, write its report and return the exit code of its error.

The space of the report is reserved before the work, and it is written atomically after every outcome; a retry replaces
it. With `--check` the job only checks its command and its table. It writes a report only if the check fails, or if the
run has nothing to do and `--end-if-idle` is set. SIGTERM raises an exception in the job, so that an active write is
rolled back. On Linux the kernel kills the driver when spark-submit, its parent, ends. A job of an Airflow task also
ends when its task is gone (`lakehouse.platform.jobs.task_watch`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

from lakehouse.core.system.stop import JobStop, stop_job
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.texts import printable
from lakehouse.platform.jobs.report import is_reported_by_caller, print_document
from lakehouse.platform.jobs.report_stores import open_report_store
from lakehouse.platform.jobs.task_watch import watch_task
from lakehouse.spec.contracts.job import (
    ErrorCode,
    IngestReport,
    JobError,
    JobReport,
    JobStatus,
    PublicationReport,
    ServiceReport,
)
from lakehouse.spec.contracts.job_check import JobCheck
from lakehouse.spec.job_command import IngestCommand, JobArguments, PublishCommand, ServiceCommand
from lakehouse.spec.report_store import JobDocument, Reservation, sibling
from lakehouse.spec.reports_folder import is_folder
from lakehouse.spec.secrets import redact_text

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
CommandT = TypeVar("CommandT", bound=JobArguments)
#: Control characters that stay in messages.
_LINES = "\n\t"


def run_job(
    command: CommandT,
    work: Callable[[CommandT], JobReport],
    check: Callable[[CommandT], tuple[str, ...]],
    end_if_idle: Callable[[CommandT], JobReport | None] | None = None,
) -> int:
    """Execute `work`, write its report and return the exit code: 0, or the code of the error class.

    Args:
        command: The command of the job.
        work: Runs the job; it also calls `check` first.
        check: Checks the command without a Spark session and returns notes. A command with `check` set runs it alone.
        end_if_idle: Ends a run without work and returns its report; returns None for a run with work. It is called
            after the check, if the command has `end_if_idle` set.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    file: Reservation | None = None
    trace = ""
    try:
        file = open_report_store(command.report, os.environ).reserve() if command.report else None
        watch_task(os.environ)
        command = _with_local_spec(command)
        report = _checked(command, check, end_if_idle) if command.check else work(command)
        if report is None:
            _discard(file)
            return 0
    except JobStop as stop:
        report = _failed(command, stop.error)
    except LakehouseError as error:
        report = _failed(command, error)
    except RecursionError:
        # Libraries that read types and values recurse. The readers of lakehouse raise UserError by themselves.
        deep = UserError(
            f"{command.table}: a value or a type of the input is nested too deep to be read; declare such columns as "
            "text in the spec's `schema`, or flatten them before the ingestion",
            table=command.table,
        )
        report, trace = _failed(command, deep), traceback.format_exc(limit=-5)
    except Exception as error:
        report, trace = _failed(command, error), traceback.format_exc()
    report = replace(report, interval=report.interval or command.interval_name)
    is_written = file is not None and _is_written(file, report)
    if report.error is None:
        return 0
    _show_error(command, report.error, trace, is_reported=is_written and is_reported_by_caller(command, os.environ))
    return report.error.exit_code


def _with_local_spec(command: CommandT) -> CommandT:
    """Copy the spec of the job from the store of its report to this host, where the task's files cannot be read."""
    if not command.report or is_folder(command.table) or command.table != sibling(command.report, JobDocument.SPEC):
        return command
    spec = open_report_store(command.report, os.environ).read(JobDocument.SPEC).get(JobDocument.SPEC)
    if spec is None:
        raise UserError(f"the table spec {command.table} does not exist", table=command.table)
    path = Path(tempfile.mkdtemp(prefix="lakehouse-spec-")) / JobDocument.SPEC.value
    path.write_text(spec, encoding="utf-8")
    return replace(command, table=str(path))


def _checked(
    command: CommandT,
    check: Callable[[CommandT], tuple[str, ...]],
    end_if_idle: Callable[[CommandT], JobReport | None] | None,
) -> JobReport | None:
    """Check a command; return the report if that ends the run, or None after the result of the check is printed."""
    notes = check(command)
    ends = isinstance(command, IngestCommand) and command.end_if_idle
    report = end_if_idle(command) if end_if_idle is not None and ends else None
    if report is None:
        _show_check(command, notes)
    return report


def _show_error(command: JobArguments, error: JobError, trace: str, *, is_reported: bool) -> None:
    """Print the error of a job unless the caller reports it, and the traceback of an unexpected error if enabled."""
    # The log of an Airflow task always contains the traceback of an unexpected error.
    is_traced = bool(trace) and (command.debug or is_reported)
    sys.stderr.write(redact_text(trace) if is_traced else "")
    # The traceback of an unexpected error ends with its message.
    if is_reported or (is_traced and error.code is not ErrorCode.USER):
        return
    hint = ". This is an unexpected error; --debug shows its traceback" if trace and not is_traced else ""
    message = printable(redact_text(error.message), keep=_LINES)
    sys.stderr.write(f"{error.kind}: {message}{hint}\n")


def _is_written(file: Reservation, report: JobReport) -> bool:
    """Write a report and return whether it is written. The outcome of the job is in the log and does not depend on it.

    An error here would make the caller repeat a job that has committed.
    """
    try:
        file.write(report)
    except OSError as error:
        file.discard()
        logger.error("the report cannot be written (%s); it is: %s", error, redact_text(report.to_json()))
        return False
    return True


def _discard(file: Reservation | None) -> None:
    if file is not None:
        file.discard()


def die_with_parent() -> None:
    """Ask Linux to kill this driver when its parent ends; otherwise an orphaned driver continues unnoticed."""
    if sys.platform == "linux" and "PYSPARK_GATEWAY_PORT" in os.environ:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _show_check(command: JobArguments, notes: tuple[str, ...]) -> None:
    checked = JobCheck(command=command.title, tables=command.tables, notes=notes)
    text = "\n".join([f"{checked.command} of {', '.join(checked.tables)}: the check found no error", *notes])
    print_document(command, checked, text)


def _failed(command: JobArguments, error: BaseException) -> JobReport:
    kind: type[JobReport] = IngestReport
    if isinstance(command, ServiceCommand | PublishCommand):
        kind = ServiceReport if isinstance(command, ServiceCommand) else PublicationReport
    return kind(status=JobStatus.FAILED, table=command.table, error=JobError.of(error))


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    stop_job(f"the job was stopped by signal {signal.Signals(number).name}")
