"""Runs `lakehouse` commands from triggers, as processes in Spark's environment that do not block the triggerer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from lakehouse_airflow.commands import command_line
from lakehouse_airflow.compat import AirflowException, connection_of_trigger
from lakehouse_airflow.job_environment import CATALOG_CONNECTION, CATALOG_VARIABLE, catalog_url

#: Maximum number of concurrent commands per triggerer. Each is a process of 100 to 200 MB.
_CONCURRENT_COMMANDS = asyncio.Semaphore(2)


async def run_in_trigger(words: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run a lakehouse command and return its exit code, output and error output.

    Kill it if the trigger is cancelled.
    """
    arguments, environ = command_line(words, os.environ)
    environ |= {**await _catalog_variables(), **(variables or {})}
    async with _CONCURRENT_COMMANDS:
        process = await asyncio.create_subprocess_exec(
            *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None, "communicate() waits for the end of the process"
    return process.returncode, output.decode(), errors.decode()


async def _catalog_variables() -> dict[str, str]:
    """Return the variable with the catalog URL like `catalog_variables`, by the asynchronous API of triggers."""
    if os.environ.get(CATALOG_VARIABLE):
        return {}
    try:
        return {CATALOG_VARIABLE: catalog_url(await connection_of_trigger(CATALOG_CONNECTION))}
    except AirflowException:
        return {}
