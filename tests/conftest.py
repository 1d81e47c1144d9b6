"""Settings of all tests: UTC, the Python of Spark's workers, and no silent skip in CI.

A test that needs a jar, a server or the shared fixtures skips if it is missing, with a reason that starts with
`missing:`. With CI=true such a skip is a failure.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

from demo.jvm import short_job_flags
from tests.support.extended import extended_tests
from tests.support.longest import by_length

MISSING = "missing:"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

os.environ["TZ"] = "UTC"
time.tzset()

os.environ.setdefault("JDK_JAVA_OPTIONS", short_job_flags(Path(__file__).resolve().parents[1] / ".venv"))

if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # Neither the deadline of an example nor the time to generate it may decide a test: machines differ in load.
    settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("project")

IN_SPARK_ENVIRONMENT = find_spec("pyspark") is not None
if IN_SPARK_ENVIRONMENT:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

#: Environments of the version matrix have pyspark, pytest and no test servers.
HAS_SERVERS = find_spec("moto") is not None

# Registers the modules with fixtures. The metastore is used in both environments.
SUPPORT = Path(__file__).parent / "support"
pytest_plugins = [
    f"tests.support.{name}"
    for name in (
        "spark",
        "s3",
        "stores",
        "postgresql",
        "zookeeper",
        "hive",
        "hive_spark",
        "locks",
        "kafka",
        "mysql",
        "postgres",
        "mariadb",
        "hadoop",
    )
    if (IN_SPARK_ENVIRONMENT or name == "hive")
    and (HAS_SERVERS or name in ("spark", "hive"))
    and (SUPPORT / f"{name}.py").exists()
]

collect_ignore = [] if find_spec("airflow") is not None else ["airflow"]


def fail_if_missing(report: Report) -> Report:
    """Turn a skip with a `missing:` reason into a failure if CI=true."""
    if os.environ.get("CI") == "true" and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(MISSING):
            report.outcome = "failed"
            report.longrepr = f"{reason} (a skip on a laptop, a failure under CI=true)"
    return report


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Let the timers of a process whose crash is simulated end silently.

    Their first call may come a minute later, during another test, which pytest would fail for it.
    """
    hook = threading.excepthook
    threading.excepthook = lambda error: None if error.exc_type.__name__ == "SimulatedCrash" else hook(error)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that CI leaves out, and start the longest modules first."""
    extended = extended_tests(item.nodeid for item in items)
    for item in items:
        if item.nodeid in extended:
            item.add_marker(pytest.mark.extended)
    items[:] = [items[number] for number in by_length([item.nodeid for item in items])]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Apply `fail_if_missing` to each test, and replace characters of its output that are not UTF-8.

    Tests write such names to logs. A worker of xdist cannot send them, which would end all tests.
    """
    report = fail_if_missing((yield))
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Apply `fail_if_missing` to modules that skip during collection."""
    return fail_if_missing((yield))
