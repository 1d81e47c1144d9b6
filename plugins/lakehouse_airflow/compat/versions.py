"""Installed Airflow version, and the version lines that this package supports.

Nothing outside of this package compares versions of Airflow. This module does not import Airflow, so that every process
can import it.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

#: Supported lines of versions, oldest first.
LINES = ((2, 11), (3, 0), (3, 1), (3, 2), (3, 3))
_DISTRIBUTIONS = ("apache-airflow-core", "apache-airflow")


def airflow_version() -> str | None:
    """Return the version of the installed Airflow, or None without Airflow."""
    for distribution in _DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def line_of(version_text: str) -> tuple[int, int]:
    """Return major and minor version of a version such as `3.1.8` or `2.11.0+composer`."""
    numbers = re.findall(r"\d+", version_text)
    return int(numbers[0]), int(numbers[1])


def line_text(line: tuple[int, int]) -> str:
    """Format a version line, such as `3.1`."""
    return f"{line[0]}.{line[1]}"


def supported_text() -> str:
    """Format the supported lines."""
    *most, last = (line_text(line) for line in LINES)
    return f"{', '.join(most)} and {last}"


def version_problem(version_text: str | None) -> str:
    """Return why an Airflow version is not supported, or an empty string."""
    if version_text is None:
        return f"Airflow is not installed in this environment; supported are the versions {supported_text()}"
    if line_of(version_text) in LINES:
        return ""
    return f"Airflow {version_text} is not supported; supported are the versions {supported_text()}"


def package_problem() -> str:
    """Return the problem with an installed package and its remedy, or an empty string."""
    if installed_line() != (3, 2):
        return ""
    try:
        svcs = version("svcs")
    except PackageNotFoundError:
        return ""
    # Airflow 3.2 drops the object that owns the lifespan of its in-process API. Since 26.2, svcs removes the registry
    # of an app when its lifespan is collected.
    if line_of(svcs) < (26, 2):
        return ""
    return f"`airflow dags test` of Airflow 3.2 fails with svcs {svcs}: run pip install 'svcs<26.2'"


def installed_line() -> tuple[int, int]:
    """Return the line of the installed Airflow. An unsupported version counts as the nearest supported line."""
    text = airflow_version()
    line = LINES[-1] if text is None else line_of(text)
    return max((one for one in LINES if one <= line), default=LINES[0])


def has(since: tuple[int, int]) -> bool:
    """Return whether the installed Airflow belongs to this line or to a newer one."""
    return installed_line() >= since
