"""Trigger that waits for an application on a cluster without a worker slot, and the link to the application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.spec.contracts.job import STORAGE_SETTINGS
from lakehouse.spec.report_store import JobDocuments
from lakehouse.spec.reports_folder import is_folder
from lakehouse_airflow.compat import BaseOperatorLink, BaseTrigger, TriggerEvent
from lakehouse_airflow.job_environment import catalog_variables, connection_variables
from lakehouse_airflow.job_reports import job_store
from lakehouse_airflow.spark_environment import spark_environment
from lakehouse_airflow.submission.protocol import ApplicationStatus
from lakehouse_airflow.submission.tasks import ClusterJob, StatusWatch, SubmissionRecord

#: Running requests to end applications. They are stored here, because the event loop keeps no reference to its tasks.
_KILLS: set[asyncio.Task[None]] = set()


def store_at(address: str, storage: str) -> JobDocuments:
    """Return the store of a job, with the credentials of jobs. `storage` contains storage settings as JSON."""
    if is_folder(address):
        return job_store(address, "", {})
    spark = spark_environment(os.environ)
    variables = {**spark.variables, **catalog_variables(os.environ), **connection_variables(os.environ)}
    return job_store(address, spark.variables["PYSPARK_PYTHON"], {**variables, STORAGE_SETTINGS: storage})


class ApplicationTrigger(BaseTrigger):
    """Wait until an application has ended, and yield its ApplicationStatus as a mapping.

    Args:
        record: The SubmissionRecord as a mapping.
        address: Address of the report.
        storage: Storage settings of the operator as JSON.
        poll_s: Seconds between two polls.
        lost_after_s: Seconds without a heartbeat after which the job ends.
    """

    def __init__(self, *, record: dict[str, Any], address: str, storage: str, poll_s: float, lost_after_s: int) -> None:
        super().__init__()
        self.record = SubmissionRecord.from_mapping(record)
        self.address, self.storage = address, storage
        self.poll_s, self.lost_after_s = poll_s, lost_after_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that rebuild this trigger in the triggerer."""
        values = {
            "record": self.record.to_mapping(),
            "address": self.address,
            "storage": self.storage,
            "poll_s": self.poll_s,
            "lost_after_s": self.lost_after_s,
        }
        return f"{ApplicationTrigger.__module__}.{ApplicationTrigger.__qualname__}", values

    def __repr__(self) -> str:
        """Return a description for logs without the storage settings, which may be secret."""
        return f"<{ApplicationTrigger.__qualname__} application={self.record.running.title}>"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the application until its end. Requests run in threads, because the clients of providers block."""
        watch = await _in_thread(self._watch)
        while True:
            try:
                status, is_new = await _in_thread(watch.poll)
            except Exception as error:
                # The task reads the error. Its next try reattaches to the application.
                yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                return
            if status is not None and is_new:
                self.log.info("%s is %s %s", self.record.running.title, status.state, status.reason)
            if status is not None and status.state.has_ended:
                yield TriggerEvent(status.to_mapping())
                return
            await asyncio.sleep(self.poll_s)

    async def on_kill(self) -> None:
        """End the application, because a user cleared the task or set its state.

        Airflow 3.3 cancels a trigger again each second while this method runs. The request continues without it.
        """
        killing = asyncio.create_task(self._kill())
        _KILLS.add(killing)
        killing.add_done_callback(_KILLS.discard)
        await asyncio.shield(killing)

    async def _kill(self) -> None:
        try:
            await _in_thread(lambda: self._job().kill(self.record))
        except LakehouseError as error:
            self.log.error("%s could not be ended: %s", self.record.running.title, error)

    def _watch(self) -> StatusWatch:
        return StatusWatch(self._job(), self.record, self.poll_s)

    def _job(self) -> ClusterJob:
        store = store_at(self.address, self.storage)
        return ClusterJob(choice=self.record.choice, store=store, lost_after_s=self.lost_after_s)


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Run a function that blocks in a thread whose connections Airflow's triggerer answers."""
    # Airflow has the package. Parsing DAGs does not import it.
    return await import_module("asgiref.sync").sync_to_async(function, thread_sensitive=False)()


def status_of(event: dict[str, Any]) -> ApplicationStatus | None:
    """Return the status in an event of the trigger; None if the application could not be followed."""
    return None if "error" in event else ApplicationStatus.from_mapping(event)


class ApplicationLink(BaseOperatorLink):
    """Link from a task to the page of its application on the cluster."""

    name = "Application"
    #: Key of the XCom value, which the operator sets when the application starts.
    xcom_key = "lakehouse_application_link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address, which the operator has in the process of its task."""
        del ti_key
        return str(getattr(operator, "application_link", "") or "")
