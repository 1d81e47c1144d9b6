"""Wait for a partition of a Hive Metastore to be what `lakehouse publish` made it.

    sensor ── first look ──► there: done
                  └────────► deferred: the triggerer looks every `poke_interval` seconds, no slot is held

A look is a short process in Spark's environment, for the metastore's client lives there; a few at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook, BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from lakehouse.errors import RetryableError, UserError
from lakehouse_airflow.catalog import CONNECTION, VARIABLE, catalog_url
from lakehouse_airflow.commands import command_line, failure, run_command
from lakehouse_airflow.publish import is_shown

log = logging.getLogger(__name__)

#: Looks that one triggerer takes at the same time: each is a process of some 200 MB.
_AT_ONCE = asyncio.Semaphore(2)


class PartitionReadySensor(BaseSensorOperator):
    """Wait until readers see a partition of a published table; return its name, version and event time.

    `table` is a table spec with `services.publish`, or the name of such a table in the catalog; `partition` is like
    `dt=2026-03-01`. Fails at once for a name that no partition of the table can have, and where nothing could ever make
    it ready; with AirflowSensorTimeout after `timeout` seconds. Where `deferrable` no slot is held while it waits.
    """

    template_fields = ("table", "partition")

    def __init__(
        self,
        *,
        table: str,
        partition: str,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=True),
        poke_interval: timedelta | float = 15,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.table = table
        self.partition = partition
        self.deferrable = deferrable
        self._seen: dict[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Look; if it is not there, wait in the triggerer, or here."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            self.defer(
                trigger=PartitionReadyTrigger(
                    table=self.table, partition=self.partition, poke_interval_s=self.poke_interval
                ),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        assert self._seen is not None, "it is there"
        return self._seen

    def poke(self, context: Context) -> bool:
        """Look once, whether readers see the partition."""
        try:
            row = _row(run_command(_words(self.table, self.partition)))
        except UserError as error:
            raise AirflowFailException(str(error)) from error
        log.info("%s: %s", row["partition"], row["why"] or row["state"])
        why = hopeless(row)
        if why is not None:
            raise AirflowFailException(why)
        self._seen = told(row) if is_shown(row) else None
        return self._seen is not None

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the trigger saw, or raise what went wrong."""
        if event.get("error"):
            raise (AirflowFailException if event.get("final") else AirflowException)(str(event["error"]))
        return dict(event["seen"])


class PartitionReadyTrigger(BaseTrigger):
    """Look every `poke_interval_s` seconds whether readers see a partition; a metastore that is down is asked again."""

    def __init__(self, *, table: str, partition: str, poke_interval_s: float) -> None:
        super().__init__()
        self.table = table
        self.partition = partition
        self.poke_interval_s = poke_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what makes the same trigger elsewhere."""
        given = {"table": self.table, "partition": self.partition, "poke_interval_s": self.poke_interval_s}
        return f"{PartitionReadyTrigger.__module__}.{PartitionReadyTrigger.__qualname__}", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event: what was seen, or why it is no use to go on."""
        while True:
            event = await self._look()
            if event is not None:
                yield TriggerEvent(event)
                return
            await asyncio.sleep(self.poke_interval_s)

    async def _look(self) -> dict[str, Any] | None:
        words = _words(self.table, self.partition)
        try:
            exit_code, output, errors = await _run(words)
        except UserError as error:
            return {"error": str(error), "final": True}
        if exit_code == RetryableError.exit_code:
            self.log.warning("%s; looking again", errors.strip().rpartition("\n")[2])
            return None
        if exit_code:
            failed = failure(words, exit_code, errors)
            return {"error": str(failed), "final": isinstance(failed, AirflowFailException)}
        row = _row(output)
        why = hopeless(row)
        if why is not None:
            return {"error": why, "final": True}
        return {"seen": told(row)} if is_shown(row) else None


def hopeless(row: Mapping[str, Any]) -> str | None:
    """Return why a partition will never be there by itself, None where it may; by a row of `publish status`."""
    if row["state"] in ("lost", "expired"):
        return f"{row['partition']} is {row['state']}: {row['why']}"
    if row["state"] == "waiting" and str(row["why"]).startswith("waits for nothing"):
        return f"{row['partition']} {row['why']}; signal it (`ready: signal`), or publish it by force"
    return None


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a sensor tells of a partition, by a row of `publish status`."""
    return {"partition": row["partition"], "instant": row["version"], "event_time": row["event_time"]}


async def _run(words: list[str]) -> tuple[int, str, str]:
    """Run a command of lakehouse without holding up the triggerer; end it if the trigger is cancelled."""
    arguments, environ = command_line(words, os.environ)
    environ |= await _catalog_variables()
    async with _AT_ONCE:
        process = await asyncio.create_subprocess_exec(
            *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None, "it has ended"
    return process.returncode, output.decode(), errors.decode()


async def _catalog_variables() -> dict[str, str]:
    """Return the variable that names the catalog, as `catalog_variables` does, asked as a trigger must ask."""
    if os.environ.get(VARIABLE):
        return {}
    try:
        return {VARIABLE: catalog_url(await BaseHook.aget_connection(CONNECTION))}
    except AirflowException:
        return {}


def _words(table: str, partition: str) -> list[str]:
    return ["publish", "status", "--table", table, "--partition", partition, "--output", "json"]


def _row(output: str) -> dict[str, Any]:
    (row,) = json.loads(output)
    return dict(row)
