"""Settings of a job that are known before its Spark session starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pyspark import SparkConf, SparkContext

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import STORAGE_PREFIXES, STORAGE_SETTINGS


def is_submitted(environ: Mapping[str, str]) -> bool:
    """Return whether spark-submit started this process, so that its JVM runs."""
    return "PYSPARK_GATEWAY_PORT" in environ


def submitted_storage_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of file systems that the session of this job will have, without starting it."""
    return {key: value for key, value in submitted_settings(environ).items() if key.startswith(STORAGE_PREFIXES)}


def submitted_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the user gave for the session of this job, without starting it.

    Under spark-submit the JVM holds them. Otherwise they come from `spark-defaults.conf` and from the variable
    LAKEHOUSE_STORAGE_SETTINGS, which an Airflow operator sets to its own `conf`.
    """
    if is_submitted(environ):
        # This connects to the JVM of spark-submit and starts no Spark context.
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return {**_defaults(environ), **_given(environ)}


def _given(environ: Mapping[str, str]) -> dict[str, str]:
    try:
        given = json.loads(environ.get(STORAGE_SETTINGS) or "{}")
    except ValueError as error:
        raise UserError(f"{STORAGE_SETTINGS} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise UserError(f"{STORAGE_SETTINGS} is not a JSON object of settings")
    return {str(key): str(value) for key, value in given.items()}


def _defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Parse `spark-defaults.conf`: a key, then a space, `=` or `:`, then the value."""
    package = find_spec("pyspark")
    home = environ.get("SPARK_HOME") or (os.path.dirname(package.origin) if package and package.origin else "")
    path = Path(environ.get("SPARK_CONF_DIR") or Path(home) / "conf") / "spark-defaults.conf"
    if not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
