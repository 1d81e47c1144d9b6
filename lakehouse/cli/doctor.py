"""`lakehouse doctor`: check what a deployment needs, and say what to do."""

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

#: Libraries that log errors of connections.
_NOISY = ("thrift", "kazoo")
_HOW = "The column `what to do` of the result says how to correct them"
#: Width of the table, in characters, if the output is not a terminal; least width of a cell.
_WIDTH, _LEAST_CELL = 160, 30


def run_doctor(given: Given) -> int:
    """Run the checks of this environment, print the results, and raise UserError if one failed."""
    for library in _NOISY:
        # The table has the error; the libraries would print it with a traceback.
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
    """Run the checks of an environment; `auto` is Airflow's if Airflow is installed here, and Spark's otherwise.

    The checks of Airflow's environment also start those of Spark's environment in a process there.
    """
    in_airflow = find_spec("airflow") is not None
    if environment == CheckedEnvironment.AIRFLOW and not in_airflow:
        raise UserError(
            f"--environment airflow: there is no Airflow in {sys.prefix}. Run `lakehouse doctor` in its environment"
        )
    if environment == CheckedEnvironment.AIRFLOW or (environment == "auto" and in_airflow):
        # Only Airflow's environment has the package.
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
    """Return the results as a table for people, with cells of several lines."""
    names = [len(check.name) for check in report.checks]
    first, second = max([len("check"), *names]), max(len(state.value) for state in CheckState)
    rest = max(width - first - second - 6, 2 * _LEAST_CELL)
    third = rest * 3 // 5
    widths = (first, second, third, rest - third)
    rows = [("check", "state", "found", "what to do"), tuple("-" * width for width in widths)]
    rows += [(check.name, check.state.value, printable(check.found), check.advice) for check in report.checks]
    return "\n".join(line for row in rows for line in _lines(row, widths))


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of one row."""
    cells = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells))):
        parts = [
            (cell[number] if number < len(cell) else "").ljust(width) for cell, width in zip(cells, widths, strict=True)
        ]
        yield "  ".join(parts).rstrip()
