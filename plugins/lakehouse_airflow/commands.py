"""Run `lakehouse` commands that need no Spark session, as processes in Spark's environment."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence

from lakehouse_airflow.compat import AirflowException, AirflowFailException
from lakehouse_airflow.job_environment import catalog_variables, connection_variables, spec_variables
from lakehouse_airflow.job_reports import FINAL_EXIT_CODES
from lakehouse_airflow.processes import JOB
from lakehouse_airflow.spark_environment import spark_environment

log = logging.getLogger(__name__)


def command_line(words: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of the process that runs a command of lakehouse."""
    spark = spark_environment(environ)
    return [spark.variables["PYSPARK_PYTHON"], spark.application, *words], {**environ, **spark.variables}


def run_command(words: Sequence[str], *, job_id: str | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Run a command of lakehouse and return its standard output. If `job_id` is given, `end_job` can end its process.

    `variables` are additional environment variables. Lines of standard error are logged. Raises AirflowException if the
    command fails, AirflowFailException if a retry cannot help.
    """
    arguments, environ = command_line(words, os.environ)
    environ |= catalog_variables(os.environ) | connection_variables(os.environ) | spec_variables(os.environ)
    environ |= variables or {}
    if job_id is not None:
        environ[JOB] = job_id
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        log.info("%s", line)
    if done.returncode:
        raise failure(words, done.returncode, done.stderr)
    return done.stdout


def failure(words: Sequence[str], exit_code: int, errors: str) -> AirflowException:
    """Build the exception for a failed command from the last line of `errors`. It is final if a retry cannot help."""
    reason = errors.strip().rpartition("\n")[2] or f"exit code {exit_code}"
    message = f"lakehouse {' '.join(words[:2])}: {reason}"
    return AirflowFailException(message) if exit_code in FINAL_EXIT_CODES else AirflowException(message)
