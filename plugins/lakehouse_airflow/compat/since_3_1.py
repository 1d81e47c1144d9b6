"""Interface functions for triggers on Airflow 3.1 and newer."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook


async def connection_of_trigger(connection_id: str) -> Any:
    """Return a connection in a trigger. Raise AirflowException if it does not exist."""
    return await BaseHook.aget_connection(connection_id)
