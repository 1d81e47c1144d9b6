"""DAG runs for tests that run an operator in the process of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from airflow.sdk.execution_time.context import OutletEventAccessors

from lakehouse_airflow.operators import LakehouseOperator


def own_run_id() -> str:
    """Return an id that no other DAG run has.

    An operator ends the processes of earlier tries, which it finds by the ids of its DAG, run and task. With a constant
    id it would end those of a test that runs beside it in another process.
    """
    return f"manual__{uuid4()}"


#: The tries of one task share the id of their run.
RUN_ID = own_run_id()


def run_context(task: LakehouseOperator, **kwargs: Any) -> dict[str, Any]:
    """Return what Airflow gives to a task of the run `RUN_ID`; `pushed` has the values that the task pushes."""
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(
        task=task,
        dag_id="ingest.sales.orders",
        task_id="ingest",
        run_id=RUN_ID,
        map_index=-1,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    return {"ti": instance, "params": {}, "outlet_events": OutletEventAccessors(), "pushed": pushed} | kwargs
