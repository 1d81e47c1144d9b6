"""`lakehouse doctor`: check the requirements of a deployment, and suggest corrections."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.errors import UserError
from lakehouse.model.texts import printable
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment, CheckState, DoctorReport

#: Libraries that log connection errors.
_NOISY = ("thrift", "kazoo")
_HOW = "The column `what to do` of the result says how to correct them"
#: Width of the table if the output is not a terminal, and minimum width of a cell, in characters.
_WIDTH, _LEAST_CELL = 160, 30


def run_doctor(given: Given) -> int:
    """Run the checks of this environment, print the results, and raise UserError if a check failed."""
    for library in _NOISY:
        # The printed table contains the error; the libraries would print it a second time with a traceback.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    report = examine_here(given.environment, tuple(given.check))
    if given.output == "json":
        show_document(report, given.output)
    else:
        print(text_table(report, shutil.get_terminal_size((_WIDTH, 0)).columns))
    if report.failures:
        names = ", ".join(check.name for check in report.failures)
        raise UserError(f"{len(report.failures)} of {len(report.checks)} checks failed: {names}. {_HOW}")
    return 0


def examine_here(environment: str, names: tuple[str, ...] = ()) -> DoctorReport:
    """Run the checks of an environment.

    `auto` means Airflow's environment if Airflow is installed here, otherwise Spark's.

    The checks of Airflow's environment also start the checks of Spark's environment in a child process there.
    """
    in_airflow = find_spec("airflow") is not None
    if environment == CheckedEnvironment.AIRFLOW and not in_airflow:
        raise UserError(
            f"--environment airflow: there is no Airflow in {sys.prefix}. Run `lakehouse doctor` in its environment"
        )
    if environment == CheckedEnvironment.AIRFLOW or (environment == "auto" and in_airflow):
        # The package is installed in Airflow's environment only.
        airflow: Any = import_module("lakehouse_airflow.doctor")
        report: DoctorReport = airflow.examine(os.environ, names)
        return report
    unknown = [name for name in names if CHECKS[name].environment is not CheckedEnvironment.SPARK]
    if unknown:
        raise UserError(f"--check {unknown[0]}: this check runs in Airflow's environment. Run `lakehouse doctor` there")
    # The checks import Arrow, which Airflow's environment does not have.
    examine: Any = import_module("lakehouse.platform.doctor.examine")
    deployment: Any = import_module("lakehouse.platform.doctor.deployment")
    checked: DoctorReport = examine.examine(deployment.Deployment(os.environ), names)
    return checked


def text_table(report: DoctorReport, width: int) -> str:
    """Format the results as a text table, with long cells wrapped over several lines."""
    names = [len(check.name) for check in report.checks]
    first, second = max([len("check"), *names]), max(len(state.value) for state in CheckState)
    rest = max(width - first - second - 6, 2 * _LEAST_CELL)
    third = rest * 3 // 5
    widths = (first, second, third, rest - third)
    rows = [("check", "state", "found", "what to do"), tuple("-" * width for width in widths)]
    rows += [(check.name, check.state.value, printable(check.found), check.advice) for check in report.checks]
    return "\n".join(line for row in rows for line in _lines(row, widths))


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the output lines of one table row."""
    cells = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells))):
        parts = [
            (cell[number] if number < len(cell) else "").ljust(width) for cell, width in zip(cells, widths, strict=True)
        ]
        yield "  ".join(parts).rstrip()
