"""Interface functions for triggers on Airflow 3.0 and 2.11."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.hooks.base import BaseHook


async def connection_of_trigger(connection_id: str) -> Any:
    """Return a connection in a trigger. Raise AirflowException if it does not exist."""
    return await asyncio.to_thread(BaseHook.get_connection, connection_id)
