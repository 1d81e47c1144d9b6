"""What holds for every test: UTC, one Python for Spark's workers, and no silent skip in CI.

A test that needs something a machine may lack (a jar, a server, the shared fixtures) skips with a reason that starts
with `missing:`. On a laptop that is a line in the summary; under CI=true it is a failure.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

MISSING = "missing:"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

os.environ["TZ"] = "UTC"
time.tzset()

# JVMs of tests live for seconds: the optimising compiler and parallel collectors would cost them more than they give.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

IN_SPARK_ENVIRONMENT = find_spec("pyspark") is not None
if IN_SPARK_ENVIRONMENT:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

# Fixtures stand in modules with names; here they are only made known. A metastore is for both environments.
SUPPORT = Path(__file__).parent / "support"
pytest_plugins = [
    f"tests.support.{name}"
    for name in ("spark", "s3", "stores", "postgresql", "zookeeper", "hive", "hive_spark", "locks")
    if (IN_SPARK_ENVIRONMENT or name == "hive") and (SUPPORT / f"{name}.py").exists()
]

collect_ignore = [] if find_spec("airflow") is not None else ["airflow"]


def fail_if_missing(report: Report) -> Report:
    """Turn a skip for something missing into a failure when CI=true."""
    if os.environ.get("CI") == "true" and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(MISSING):
            report.outcome = "failed"
            report.longrepr = f"{reason} (a skip on a laptop, a failure under CI=true)"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hold each test to the rule above."""
    return fail_if_missing((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Hold whole modules to the rule above: they may skip while they are collected."""
    return fail_if_missing((yield))
