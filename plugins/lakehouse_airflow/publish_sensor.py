"""Sensor that waits until readers of a Hive Metastore see a partition that `lakehouse publish` published.

    sensor ── first check ──► visible: done
                  └─────────► deferred: the triggerer checks every `poke_interval` seconds; no slot is occupied

A check is a short process in Spark's environment, because the metastore's client is installed there. Each triggerer
runs a limited number of checks at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.contracts.publication import (
    PartitionEvent,
    PartitionState,
    PartitionStatus,
    PublicationStatus,
    SensorEvent,
)
from lakehouse_airflow.commands import failure, run_command
from lakehouse_airflow.compat import (
    AirflowException,
    AirflowFailException,
    BaseSensorOperator,
    BaseTrigger,
    Context,
    TriggerEvent,
    conf,
)
from lakehouse_airflow.trigger_commands import run_in_trigger

log = logging.getLogger(__name__)


class PartitionReadySensor(BaseSensorOperator):
    """Wait until readers see a partition of a published table; return a PartitionEvent as a mapping.

    The task fails immediately for a name that no partition of the table can have, and for a partition that cannot be
    published without a user action. It fails with AirflowSensorTimeout after `timeout` seconds.

    Args:
        table: Table spec with `services.publish`, or the name of such a table in the catalog.
        partition: Name of the partition, such as `dt=2026-03-01`.
        deferrable: Wait in the triggerer, without a slot.
        poke_interval: Time between two checks.
        kwargs: Arguments of BaseSensorOperator.
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
        self._visible: PartitionEvent | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Check once. If the partition is not visible, wait in the triggerer or in this process."""
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
        assert self._visible is not None, "the last check returned a visible partition"
        return self._visible.to_mapping()

    def poke(self, context: Context) -> bool:
        """Check once whether readers see the partition."""
        try:
            target, status = _only_partition(run_command(_status_command(self.table, self.partition)))
        except UserError as error:
            raise AirflowFailException(str(error)) from error
        log.info("%s: %s", status.partition, status.reason or status.state)
        if status.is_unreachable:
            raise AirflowFailException(unreachable_message(status))
        self._visible = PartitionEvent.of(target, status) if status.is_visible else None
        return self._visible is not None

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the partition of the trigger's event, or raise the event's error."""
        received = SensorEvent.from_mapping(event)
        if received.partition is None:
            raise (AirflowFailException if received.final else AirflowException)(received.error)
        return received.partition.to_mapping()


class PartitionReadyTrigger(BaseTrigger):
    """Check every `poke_interval_s` seconds whether readers see a partition. Continue if the metastore is down."""

    def __init__(self, *, table: str, partition: str, poke_interval_s: float) -> None:
        super().__init__()
        self.table = table
        self.partition = partition
        self.poke_interval_s = poke_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that rebuild this trigger in the triggerer."""
        arguments = {"table": self.table, "partition": self.partition, "poke_interval_s": self.poke_interval_s}
        return f"{PartitionReadyTrigger.__module__}.{PartitionReadyTrigger.__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: the visible partition, or the error that ends the wait."""
        while True:
            event = await self._check()
            if event is not None:
                yield TriggerEvent(event.to_mapping())
                return
            await asyncio.sleep(self.poke_interval_s)

    async def _check(self) -> SensorEvent | None:
        words = _status_command(self.table, self.partition)
        try:
            exit_code, output, errors = await run_in_trigger(words)
            if exit_code == RetryableError.exit_code:
                self.log.warning("%s; checking again", errors.strip().rpartition("\n")[2])
                return None
            if exit_code:
                failed = failure(words, exit_code, errors)
                return SensorEvent(error=str(failed), final=isinstance(failed, AirflowFailException))
            target, status = _only_partition(output)
        except UserError as error:
            return SensorEvent(error=str(error), final=True)
        if status.is_unreachable:
            return SensorEvent(error=unreachable_message(status), final=True)
        return SensorEvent(partition=PartitionEvent.of(target, status)) if status.is_visible else None


def unreachable_message(status: PartitionStatus) -> str:
    """Return the error message for a partition that no later run publishes."""
    if status.state is PartitionState.WAITING:
        return f"{status.partition} {status.reason}; signal it (`ready: signal`), or publish it with --force"
    return f"{status.partition} is {status.state}: {status.reason}"


def _status_command(table: str, partition: str) -> list[str]:
    return ["publish", "status", "--table", table, "--partition", partition, "--output", "json"]


def _only_partition(output: str) -> tuple[str, PartitionStatus]:
    """Parse the output of `lakehouse publish status`: the publication's table and its single partition."""
    publication = PublicationStatus.from_json(output)
    (status,) = publication.partitions
    return publication.target, status
