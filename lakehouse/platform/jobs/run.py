"""One run of one job: run it, report it, exit with the code of its error.

The report is written in one piece, whatever happened; a retry overwrites it. SIGTERM ends the job by an exception, so
that a write in flight is rolled back; where the kernel offers it, the driver dies with the process that submitted it.
"""

from __future__ import annotations

import ctypes
import json
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

from lakehouse.errors import JobStoppedError, LakehouseError, UserError
from lakehouse.model.texts import printable
from lakehouse.spec.job import JobCommand, JobError, JobReport, JobStatus
from lakehouse.spec.private_files import make_parents
from lakehouse.spec.secrets import redact_text

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
#: Control characters of messages of our own.
_LINES = "\n\t"
INTERNAL_EXIT_CODE = LakehouseError.exit_code


def run_job(command: JobCommand, work: Callable[[JobCommand], JobReport]) -> int:
    """Run `work`, leave its report and return the exit code: 0, or that of the error's class."""
    die_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    code = 0
    try:
        report = work(command)
        if report.error is not None:
            code = exit_code(report.error)
            sys.stderr.write(f"{report.error.kind}: {printable(redact_text(report.error.message), keep=_LINES)}\n")
    except LakehouseError as error:
        report, code = _failed(command, error), error.exit_code
        sys.stderr.write(f"{type(error).__name__}: {printable(redact_text(str(error)), keep=_LINES)}\n")
    except RecursionError:
        # Of the libraries that read types and values; of our own, what is nested too deep is refused with its name.
        deep = UserError(
            f"{command.table}: a value or a type of the input is nested too deep to be read; declare such columns as "
            "text in the spec's `schema`, or flatten them before",
            table=command.table,
        )
        report, code = _failed(command, deep), deep.exit_code
        sys.stderr.write(f"{type(deep).__name__}: {deep}\n{redact_text(traceback.format_exc(limit=-5))}")
    except Exception as error:
        report, code = _failed(command, error), INTERNAL_EXIT_CODE
        sys.stderr.write(redact_text(traceback.format_exc()))
    report = replace(report, interval=report.interval or command.interval_name)
    if command.report:
        write_report(Path(command.report), report)
    return code


def exit_code(error: JobError) -> int:
    """Return the exit code of an error that was put down as a value."""
    kinds = {kind.__name__: kind.exit_code for kind in _kinds(LakehouseError)}
    return kinds.get(error.kind, INTERNAL_EXIT_CODE)


def _kinds(root: type[LakehouseError]) -> list[type[LakehouseError]]:
    return [root, *(kind for below in root.__subclasses__() for kind in _kinds(below))]


def write_report(path: Path, report: JobReport) -> None:
    """Write the report under its name in one step: who reads it never sees half of it."""
    make_parents(path.parent)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # A new file of mode 0600 under a name that no other process can predict.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(report.to_json())
    os.replace(temporary, path)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends: an orphaned driver would go on behind Airflow's back."""
    if sys.platform == "linux" and "PYSPARK_GATEWAY_PORT" in os.environ:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def describe(report: JobReport) -> str:
    """Return the report for people, on a few lines."""
    mapping = {key: value for key, value in report.to_mapping().items() if value not in (None, "", {})}
    return json.dumps(mapping, indent=2)


def _failed(command: JobCommand, error: BaseException) -> JobReport:
    return JobReport(status=JobStatus.FAILED, table=command.table, error=JobError.of(error))


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    raise JobStoppedError(f"the job was stopped by signal {signal.Signals(number).name}")
